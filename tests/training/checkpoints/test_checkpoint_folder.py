"""The last few checkpoints of a run are kept; damaged ones and those of others are passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evergram.training.checkpoints.checkpoint_folder import CheckpointFolder
from evergram.training.checkpoints.run_identity import RunIdentity
from evergram.training.checkpoints.settings import CheckpointSettings
from evergram.training.checkpoints.state_file import TrainingState

RUN = RunIdentity('{"seed": 1}', "1", "corpus")


def state(number: int) -> TrainingState:
    return TrainingState({"a": torch.full((2,), float(number))}, {"number": number})


def opened(
    folder: Path, keep: int = 2, run: RunIdentity = RUN, title: str = "version 1"
) -> CheckpointFolder:
    return CheckpointFolder(folder, title, run, CheckpointSettings(steps=10, keep=keep))


def number_of(folder: CheckpointFolder) -> int | None:
    loaded = folder.load()
    if loaded is None:
        return None
    assert float(loaded.tensors["a"][0]) == loaded.facts["number"]
    return int(loaded.facts["number"])


def numbers(folder: Path) -> list[str]:
    return sorted(path.name.split(".")[1].lstrip("0") for path in folder.iterdir())


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_the_newest_are_kept_and_the_newest_is_loaded(tmp_path: Path, keep: int) -> None:
    folder = opened(tmp_path, keep)
    assert folder.load() is None
    for number in range(1, 7):
        folder.save(state(number), number)
        assert len(list(tmp_path.iterdir())) == min(number, keep)
    assert numbers(tmp_path) == [str(n) for n in range(7 - keep, 7)]
    again = opened(tmp_path, keep)
    assert number_of(again) == 6
    again.save(state(7), 7)
    assert numbers(tmp_path) == [str(n) for n in range(8 - keep, 8)]
    # The same step again, after its epoch, replaces what was saved before.
    again.save(state(8), 7)
    assert number_of(opened(tmp_path, keep)) == 8


def test_a_damaged_one_is_skipped_for_the_one_before_it_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = opened(tmp_path, keep=3)
    for number in (5, 6, 7):
        folder.save(state(number), number)
    cut, changed = (tmp_path / f"version-1.{n:012d}.safetensors" for n in (7, 6))
    cut.write_bytes(cut.read_bytes()[:-3])
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    again = opened(tmp_path, keep=3)
    assert number_of(again) == 5
    assert caplog.messages == [
        f"{cut.name} is damaged: it is cut, or no file of safetensors. The checkpoint before it "
        "is tried.",
        f"{changed.name} is damaged: its SHA-256 is not the one it states. The checkpoint before "
        "it is tried.",
    ]
    again.save(state(6), 6)
    assert numbers(tmp_path) == ["5", "6"]
    assert number_of(opened(tmp_path)) == 6


def test_a_run_of_another_kind_is_said_and_replaced_at_the_first_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path).save(state(90), 90)
    other = opened(tmp_path, run=RunIdentity('{"seed": 2}', "1", "corpus"))
    assert other.load() is None
    (sentence,) = caplog.messages
    assert sentence == (
        "version-1.000000000090.safetensors is of another recipe (seed changed). So version 1 is "
        "trained from its start, and its first checkpoint replaces this one."
    )
    assert numbers(tmp_path) == ["90"]
    other.save(state(3), 3)
    assert numbers(tmp_path) == ["3"]


def test_titles_that_begin_alike_are_different_runs(tmp_path: Path) -> None:
    for title, number in (("version 1", 4), ("version 1 alone", 5), ("version 10", 6)):
        opened(tmp_path, title=title).save(state(number), number)
    assert number_of(opened(tmp_path)) == 4
    assert number_of(opened(tmp_path, title="version 1 alone")) == 5
    assert len(list(tmp_path.iterdir())) == 3


def test_never_drops_what_is_there_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path).save(state(1), 1)
    anew = CheckpointFolder(tmp_path, "version 1", RUN, CheckpointSettings(resume="never"))
    assert anew.load() is None
    assert list(tmp_path.iterdir()) == []
    assert caplog.messages == [
        "--resume never: drops version-1.000000000001.safetensors, and trains version 1 anew."
    ]
    caplog.clear()
    assert anew.load() is None
    assert caplog.messages == []


def test_a_checkpoint_is_due_by_steps_since_the_last_and_never_without_a_folder(
    tmp_path: Path,
) -> None:
    folder = opened(tmp_path)
    assert [folder.due(9), folder.due(10)] == [False, True]
    folder.save(state(12), 12)
    assert [folder.due(21), folder.due(22)] == [False, True]
    nowhere = CheckpointFolder(None, "version 1", None, CheckpointSettings(steps=1))
    assert not nowhere.due(100)
    nowhere.save(state(1), 1)
    assert nowhere.load() is None
    slow = CheckpointFolder(tmp_path, "version 1", RUN)
    assert not slow.due(10**9)
