"""One process at a time trains the next version; what it leaves behind, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock

from evergram.errors import LineageError
from evergram.lineage.locks.training_claim import (
    LOCK,
    OWNER,
    clear_work,
    refuse_unwritable,
    training_claim,
)


def test_nothing_empty_is_left_behind(tmp_path: Path) -> None:
    work = tmp_path / "shop" / ".work"
    with training_claim(work, "shop"):
        assert (work / OWNER).is_file()
    assert not (tmp_path / "shop").exists()


def test_whether_it_can_be_written_leaves_nothing_and_is_said(tmp_path: Path) -> None:
    refuse_unwritable(tmp_path / "shop" / ".work", "shop")
    assert not list(tmp_path.iterdir())
    work = tmp_path / "kept" / ".work"
    work.mkdir(parents=True)
    (work / "checkpoint").write_text("x")
    refuse_unwritable(work, "kept")
    assert [path.name for path in work.iterdir()] == ["checkpoint"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(LineageError, match=r"written to shop: Not a directory; .* was trained"):
        refuse_unwritable(tmp_path / "file" / "shop" / ".work", "shop")


def test_a_checkpoint_stays_in_the_folder_and_its_owner_does_not(tmp_path: Path) -> None:
    work = tmp_path / "shop" / ".work"
    with training_claim(work, "shop"):
        (work / "checkpoint").write_text("x")
    assert {path.name for path in work.iterdir()} - {LOCK} == {"checkpoint"}


def test_a_claim_within_a_claim_is_the_same(tmp_path: Path) -> None:
    work = tmp_path / ".work"
    with training_claim(work, "shop"):
        with training_claim(work, "shop"):
            pass
        assert (work / OWNER).is_file(), "the outer claim still holds"
    assert not work.exists()


def test_another_process_is_named(tmp_path: Path) -> None:
    work = tmp_path / ".work"
    work.mkdir()
    facts = {"owner": "eve", "host": "h", "process": 1, "since": "now"}
    (work / OWNER).write_text(json.dumps(facts))
    message = r"the next version of shop: eve on h \(process 1\) since now\. Only one"
    with (
        FileLock(work / LOCK),
        pytest.raises(LineageError, match=message),
        training_claim(work, "shop"),
    ):
        pass
    # The claim that was refused leaves the owner's note where it is.
    assert (work / OWNER).is_file()


def test_checkpoints_are_cleared_unless_another_process_trains(tmp_path: Path) -> None:
    work = tmp_path / ".work"
    clear_work(work, "lost")
    work.mkdir()
    (work / "checkpoint").write_text("x")
    with FileLock(work / LOCK):
        clear_work(work, "lost")
        assert (work / "checkpoint").exists()
    clear_work(work, "lost")
    assert not work.exists()


def test_what_is_kept_outlives_the_checkpoints(tmp_path: Path) -> None:
    work = tmp_path / ".work"
    (work / "lost").mkdir(parents=True)
    (work / "lost" / "model").write_text("x")
    (work / "folder").mkdir()
    (work / "folder" / "checkpoint").write_text("x")
    (work / "checkpoint").write_text("x")
    clear_work(work, "lost")
    assert {path.name for path in work.iterdir()} <= {"lost", LOCK}
    assert (work / "lost" / "model").read_text() == "x"
