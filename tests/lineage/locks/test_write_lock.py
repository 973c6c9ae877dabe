"""One process at a time writes to a lineage."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock
from tests.support.artefacts import artefact, shop_of_three
from tests.support.publishing import publish_next

from evergram.errors import (
    LineageError,
)
from evergram.lineage.disk.lineage_record import LineageRecord
from evergram.lineage.lineage import Lineage
from evergram.lineage.locks.write_lock import clear_left, unchanged, write_record, writing


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    return shop_of_three(tmp_path / "lineage")


def test_two_publications_at_once_do_not_mix(lineage: Lineage) -> None:
    with (
        FileLock(lineage.path / ".lock"),
        pytest.raises(LineageError, match="Another process"),
    ):
        publish_next(Lineage.open(lineage.path), artefact(5, 4))


def test_only_one_process_at_a_time_writes(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(LineageError, match="wait for it and try"),
        writing(tmp_path),
    ):
        pass
    with writing(tmp_path / "new" / "folder"):
        assert (tmp_path / "new" / "folder").is_dir()


def test_an_error_of_the_disk_is_one_of_the_lineage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(LineageError, match=r"file/line cannot be written: .*the lineage is as it"),
        writing(tmp_path / "file" / "line"),
    ):
        pass
    message = "cannot be written: No space left on device; the lineage is as it was"
    with pytest.raises(LineageError, match=message), writing(tmp_path):
        raise OSError(28, "No space left on device")


def test_a_record_that_another_process_has_changed_is_not_the_one_that_was_opened(
    tmp_path: Path,
) -> None:
    opened = LineageRecord(format_version=1, name="shop", versions=[0, 1])
    write_record(tmp_path, opened)
    assert unchanged(tmp_path, opened, "shop", labels=True).versions == [0, 1]
    labelled = opened.model_copy(update={"labels": {"stable": 0}})
    write_record(tmp_path, labelled)
    assert unchanged(tmp_path, opened, "shop", labels=False).labels == {"stable": 0}
    with pytest.raises(LineageError, match=r"shop has changed .*\(its newest version is 1\)"):
        unchanged(tmp_path, opened, "shop", labels=True)
    (tmp_path / "lineage.json").unlink()
    with pytest.raises(LineageError, match=r"\(its newest version is none\); open it again"):
        unchanged(tmp_path, opened, "shop", labels=False)


def test_a_new_lineage_is_unchanged_while_nothing_is_written(tmp_path: Path) -> None:
    opened = LineageRecord(format_version=1, name="shop", versions=[])
    assert unchanged(tmp_path, opened, "shop", labels=True).versions == []


def test_only_folders_of_published_versions_stay(tmp_path: Path) -> None:
    for parent in ("versions", "embeddings"):
        for name in ("0", "1", ".1.part", "x"):
            (tmp_path / parent / name).mkdir(parents=True)
    clear_left(tmp_path, LineageRecord(format_version=1, name="shop", versions=[0]))
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.glob("*/*")) == [
        "embeddings/0",
        "versions/0",
    ]
