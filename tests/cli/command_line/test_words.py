"""The command stands after the options before it, one of which has a value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command import Command, run_process

from evergram.cli.command_line.words import command_at, log_format_of
from evergram.log_lines import LogFormat


@pytest.mark.parametrize(
    ("words", "place", "chosen"),
    [
        ("", None, "text"),
        ("--quiet", None, "text"),
        ("train x", 0, "text"),
        ("--quiet --log-format json train x", 3, "json"),
        ("--log-format=json --quiet train", 2, "json"),
        ("--log-format json --log-format text train", 4, "text"),
        ("--log-format yaml train", 2, "text"),
        ("--log-format", None, "text"),
        ("train --log-format json", 0, "text"),
    ],
)
def test_the_place_of_the_command_and_the_format(
    words: str, place: int | None, chosen: str
) -> None:
    assert command_at(words.split()) == place
    assert log_format_of(words.split()) is LogFormat(chosen)


def lines_of(err: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in err.splitlines()]
    assert all({"time", "level", "event", "message"} <= line.keys() for line in lines)
    return lines


def test_a_training_as_json_has_the_figures_of_its_lines(evergram: Command, shop: Path) -> None:
    training = ("train", "shop.toml", "--lineage")
    plain = evergram(*training, "a", "--json")
    ran = evergram("--log-format", "json", *training, "b", "--json")
    assert ran.code == 0
    epochs = [line for line in lines_of(ran.err) if line["event"] == "progress"]
    history = ran.json["training"]["history"]
    metric = next(key for key in history[0] if "@" in key)
    measured = [line for line in epochs if metric in line]
    assert [line["epoch"] for line in measured] == [point["epoch"] for point in history]
    assert [line[metric] for line in measured] == [point[metric] for point in history]
    assert [line["loss"] for line in measured] == [point["objective"] for point in history]
    assert epochs[0]["total"]
    assert all(line["seconds_left"] is not None for line in epochs)
    # Each line for people is the message of one for programs, but for its time and speed.
    titles = [line.split(",")[0] for line in plain.err.splitlines()]
    assert [line for line in titles if not line.startswith("warning")] == [
        str(line["message"]).split(",")[0]
        for line in lines_of(ran.err)
        if line["event"] != "warning"
    ]


def test_every_line_of_a_process_is_json(tmp_path: Path) -> None:
    before = "import warnings, logging, evergram.cli as cli; old = cli.app\n"
    before += "def app(**options):\n warnings.warn('w'); logging.getLogger('other').warning('o')\n"
    before += " return old(**options)\ncli.app = app\n"
    ran = run_process("--log-format=json", "lineage", "lisst", tmp_path / "x", before=before)
    lines = lines_of(ran.err)
    assert (ran.code, ran.out) == (2, "")
    assert [line["event"] for line in lines] == ["warning", "warning", "error"]
    assert "No such command 'lisst'" in str(lines[-1]["message"])
    assert lines[-1]["exit_code"] == 2


def test_an_unknown_format_is_refused(evergram: Command) -> None:
    assert "'text', 'json'" in evergram.refused("--log-format", "yaml", "demo")
