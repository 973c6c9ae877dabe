"""A pilot that has ended is not run again, of the same run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from evergram.errors import TrainingError
from evergram.training.checkpoints.pilot_journal import PilotJournal
from evergram.training.checkpoints.run_identity import RunIdentity
from evergram.training.checkpoints.settings import CheckpointSettings

RUN = RunIdentity("{}", "0", "corpus")


def never() -> float:
    raise AssertionError("it was measured before")


@pytest.mark.parametrize("value", [0.1 + 0.2, 5e-324, -math.inf])
def test_a_value_is_measured_once_and_comes_back_bit_for_bit(tmp_path: Path, value: float) -> None:
    first = PilotJournal(tmp_path / "work", "version 0", RUN)
    assert first.value({"l2": 0.1, "rate": 2}, lambda: value) == value
    again = PilotJournal(tmp_path / "work", "version 0", RUN)
    assert again.value({"rate": 2, "l2": 0.1}, never) == value
    assert again.value({"l2": 0.2}, lambda: 7.0) == 7.0
    assert PilotJournal(tmp_path / "work", "version 0", RUN).value({"l2": 0.2}, never) == 7.0


def test_another_run_a_damaged_file_and_never_measure_anew(tmp_path: Path) -> None:
    PilotJournal(tmp_path, "version 0", RUN).value({}, lambda: 1.0)
    anew = CheckpointSettings(resume="never")
    assert PilotJournal(tmp_path, "version 0", RUN, anew).value({}, lambda: 2.0) == 2.0
    other = replace(RUN, corpus="other")
    assert PilotJournal(tmp_path, "version 0", other).value({}, lambda: 3.0) == 3.0
    assert PilotJournal(tmp_path, "version 1", other).value({}, lambda: 4.0) == 4.0
    for content in ("", "[]", '{"identity": []}', '{"identity": {}, "values": 3}'):
        (tmp_path / "version-0.pilots.json").write_text(content)
        assert PilotJournal(tmp_path, "version 0", RUN).value({}, lambda: 5.0) == 5.0
    assert PilotJournal(None, "version 0").value({}, lambda: 6.0) == 6.0


def test_an_error_is_not_kept_and_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    def fails() -> float:
        raise TrainingError("diverged")

    journal = PilotJournal(tmp_path, "version 0", RUN)
    with pytest.raises(TrainingError, match="diverged"):
        journal.value({}, fails)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    blocked = PilotJournal(tmp_path / "file", "version 0", RUN)
    with pytest.raises(TrainingError, match=r"cannot be kept in .*file: "):
        blocked.value({}, lambda: 1.0)
