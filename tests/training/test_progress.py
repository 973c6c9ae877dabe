"""Progress is lines in a pipe and a bar on a terminal, and nothing if it is quiet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from evergram.log_lines import LogFormat, set_log_format
from evergram.training import progress
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


def test_a_pipe_gets_a_line_every_so_often_of_a_task_without_descriptions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Progress().task("texts", 10) as task:
        task.advance(1, 1)
        assert not capsys.readouterr().err
        monkeypatch.setattr(progress, "EVERY", 0.0)
        task.advance(1, 1)
    assert re.fullmatch(r"texts: [\d,]+ examples/s, \d+ s left\n", capsys.readouterr().err)


def test_without_epochs_a_pipe_gets_sentences_alone(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress().without_epochs().of("seed 1")
    progress.say("One seed.")
    with progress.task("version 0", 10) as task:
        task.describe("epoch 1")
    assert capsys.readouterr().err == "seed 1, One seed.\n"


def test_a_quiet_progress_and_its_parts_write_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress.of_choice(False).of("part")
    progress.say("One seed.")
    with progress.task("version 0", 10) as task:
        task.advance(1, 1)
        task.describe("epoch 1")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.fixture
def as_json() -> Iterator[None]:
    set_log_format(LogFormat.json)
    yield
    set_log_format(LogFormat.text)


@pytest.mark.usefixtures("as_json")
def test_as_json_a_line_has_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress().of("seed 1").task("version 0", 10) as task:
        task.advance(5, 640)
        task.describe("epoch 1 loss 0.5", epoch=1, loss=0.5)
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert line["message"].startswith("seed 1, version 0: epoch 1 loss 0.5, ")
    figures = {"event": "progress", "task": "seed 1, version 0", "epoch": 1, "loss": 0.5}
    assert line.items() >= {**figures, "done": 5, "total": 10}.items()
    assert line["examples_per_second"] > 0
    assert line["seconds_left"] >= 0


@pytest.mark.usefixtures("as_json")
def test_as_json_a_task_without_descriptions_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("evergram.training.progress.monotonic", lambda: now[0])
    with Progress().task("texts", 30) as task:
        for _ in range(30):
            now[0] += 1.0
            task.advance(1, 2)
        Progress().say("Nearly there.")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line.get("done") for line in lines] == [10, 20, 30, None]
    assert [line["seconds_left"] for line in lines[:3]] == [20, 10, 0]
    assert lines[0]["examples_per_second"] == 2
    with Progress().task("few", 3) as task:
        task.advance(3, 3)
    assert json.loads(capsys.readouterr().err)["done"] == 3
    with Progress(quiet=True).task("few", 3) as task:
        task.advance(3, 3)
    assert capsys.readouterr().err == ""
