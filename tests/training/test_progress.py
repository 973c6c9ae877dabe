"""Progress is lines in a pipe and a bar on a terminal, and nothing if it is quiet."""

from __future__ import annotations

import re

import pytest

from evergram.training.progress import Progress


def test_a_pipe_gets_one_line_an_epoch_with_speed_and_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress().of("seed 1").task("version 0", 10, at_most=True) as task:
        task.advance(5, 640)
        task.describe("epoch 1 loss 0.5")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.fullmatch(
        r"seed 1, version 0: epoch 1 loss 0\.5, [\d,]+ examples/s, at most \d+ s left", lines[0]
    )


def test_a_task_of_known_length_does_not_say_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress().task("refit", 10) as task:
        task.describe("epoch 1")
    assert "at most" not in capsys.readouterr().err


def test_a_sentence_is_a_line_with_the_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(prefix="seed 1, ").say("One seed.")
    assert capsys.readouterr().err == "seed 1, One seed.\n"


def test_without_epochs_a_pipe_gets_sentences_alone(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress().without_epochs().of("seed 1")
    progress.say("One seed.")
    with progress.task("version 0", 10) as task:
        task.describe("epoch 1")
    assert capsys.readouterr().err == "seed 1, One seed.\n"


@pytest.mark.parametrize("stays", [True, False])
def test_without_epochs_a_bar_leaves_the_terminal_when_its_task_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stays: bool
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    progress = Progress() if stays else Progress().without_epochs()
    with progress.task("version 0", 1) as task:
        task.advance(1, 1)
        task.describe("epoch 1")
    written = capsys.readouterr().err
    assert "version 0" in written
    # The last thing that a bar which does not stay writes is: erase this line.
    assert written.endswith("\x1b[2K") is not stays


def test_a_quiet_progress_and_its_parts_write_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress.of_choice(False).of("part")
    progress.say("One seed.")
    with progress.task("version 0", 10) as task:
        task.advance(1, 1)
        task.describe("epoch 1")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_progress_is_kept_as_it_is() -> None:
    progress = Progress(prefix="mine")
    assert Progress.of_choice(progress) is progress
