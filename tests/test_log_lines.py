"""A line on stderr is its sentence for people, and one JSON object for programs."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evergram.log_lines import (
    LineFormatter,
    LogFormat,
    line_of,
    log_to_stderr,
    set_log_format,
)


@pytest.fixture
def as_json() -> Iterator[None]:
    set_log_format(LogFormat.json)
    yield
    set_log_format(LogFormat.text)


def record(level: int, message: str, error: bool = False) -> logging.LogRecord:
    try:
        raise ValueError("why")
    except ValueError:
        info = sys.exc_info() if error else None
    return logging.LogRecord("evergram.serving", level, "f.py", 1, message, ("x",), info)


@pytest.mark.usefixtures("as_json")
def test_for_programs_it_has_the_time_the_level_the_event_and_the_figures() -> None:
    line = line_of("progress", "½\n", before="x", at=0.5, n=3, loss=math.nan, path=Path("a"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "info",
        "event": "progress",
        "message": "½\n",
        "n": 3,
        "loss": None,
        "path": "a",
    }


@pytest.mark.parametrize(
    ("level", "name", "event"),
    [
        (logging.INFO, "info", "service"),
        (logging.WARNING, "warning", "warning"),
        (logging.CRITICAL, "error", "service"),
    ],
)
@pytest.mark.usefixtures("as_json")
def test_a_record_of_a_log_is_a_line_with_its_logger(level: int, name: str, event: str) -> None:
    formatter = LineFormatter("%(message)s", "service", process=2)
    line = json.loads(formatter.format(record(level, "of %s")))
    assert (line["level"], line["event"], line["message"]) == (name, event, "of x")
    assert (line["logger"], line["process"]) == ("evergram.serving", 2)
    assert "traceback" not in line


@pytest.mark.usefixtures("as_json")
def test_the_traceback_of_an_error_is_in_its_line() -> None:
    line = json.loads(LineFormatter("", "service").format(record(logging.ERROR, "%s", error=True)))
    assert line["traceback"].endswith("ValueError: why")


def test_the_log_of_a_service_names_its_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, ours = logging.getLogger(), logging.getLogger("evergram")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(ours, "level", ours.level)
    log_to_stderr(3)
    ours.info("Loaded.")
    assert capsys.readouterr().err.endswith(" process 3: Loaded.\n")
