"""A journal gives back the trials that it was given, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from evergram.errors import RecipeError, TrainingError
from evergram.training.checkpoints.run_identity import RunIdentity
from evergram.training.tuning import SearchSpace
from evergram.training.tuning.proposals import Trial
from evergram.training.tuning.trial_journal import LOCK, NAME, TrialJournal, claimed

IDENTITY = RunIdentity("{}", "0", "corpus")
SPACE = SearchSpace.parse(["model.dim=2..8", "task.kind=pointwise,ranking"])
TRIALS = [
    Trial(0, {"model.dim": 3, "task.kind": "ranking"}, "finished", 0.1, 2, 1, 0.5, [(1, 0.1)]),
    Trial(1, {"model.dim": 4, "task.kind": "pointwise"}, "failed", error="The loss is nan."),
]


def test_trials_are_read_as_they_were_written(tmp_path: Path) -> None:
    journal = TrialJournal(tmp_path, IDENTITY, SPACE)
    for trial in TRIALS:
        journal.add(trial)
    assert TrialJournal(tmp_path, IDENTITY, SPACE).trials == TRIALS


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"format": "other/1"}'])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(RecipeError, match="is no journal of trials"):
        TrialJournal(tmp_path, IDENTITY, SPACE)


def test_a_folder_has_one_search_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    refused = pytest.raises(RecipeError, match="Another process searches in")
    with claimed(folder), refused, claimed(folder):
        raise AssertionError("both search")
    assert not folder.exists()  # nothing was kept
    with claimed(folder):
        TrialJournal(folder, IDENTITY, SPACE).add(TRIALS[0])
    assert [path.name for path in folder.iterdir()] == [NAME]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="cannot be kept in"), claimed(tmp_path / "file" / "x"):
        raise AssertionError("it was made")


def test_a_lock_is_gone_before_another_can_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed after it was released, it was another process's, and a third one took it, too."""
    release, there = FileLock.release, []

    def releasing(lock: FileLock, force: bool = False) -> None:
        there.append((tmp_path / LOCK).exists())
        release(lock, force)

    monkeypatch.setattr(FileLock, "release", releasing)
    with claimed(tmp_path):
        pass
    assert there[0] is False
