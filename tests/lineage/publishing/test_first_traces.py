"""A first publication that fails leaves no folder and no lock; what was there before stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from evergram.lineage.publishing.first_traces import not_there_yet, removed_on_failure


def make(path: Path) -> None:
    for name in ("versions", "embeddings"):
        (path / name).mkdir(parents=True, exist_ok=True)
    (path / ".lock").touch()


def test_what_was_made_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "shelf" / "line"
    made = not_there_yet(path)
    make(path)
    with pytest.raises(OSError, match="full"), removed_on_failure(made):
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "line"
    (path / "versions").mkdir(parents=True)
    made = not_there_yet(path)
    make(path)
    (path / "embeddings" / "0").mkdir()
    with pytest.raises(OSError, match="full"), removed_on_failure(made):
        raise OSError("full")
    assert sorted(p.name for p in path.iterdir()) == ["embeddings", "versions"]


def test_the_lock_of_a_lineage_that_another_process_made_stays(tmp_path: Path) -> None:
    path = tmp_path / "line"
    made = not_there_yet(path)
    make(path)
    (path / "lineage.json").touch()
    with pytest.raises(OSError, match="late"), removed_on_failure(made):
        raise OSError("late")
    assert len(list(path.iterdir())) == 4


def test_a_success_leaves_all(tmp_path: Path) -> None:
    made = not_there_yet(tmp_path / "line")
    make(tmp_path / "line")
    with removed_on_failure(made):
        pass
    assert len(list((tmp_path / "line").iterdir())) == 3
