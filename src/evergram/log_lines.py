"""Lines on stderr: sentences for people or, for programs, one JSON object a line.

Progress, warnings, errors and the log of the service are all written here, so that `--log-format
json` leaves no other line on stderr. The format is one for the whole process, as stderr is.

JSON: `time` (UTC, ISO 8601), `level` (info, warning, error), `event` (what kind of line it is, from
a short list in docs/commands.md), `message` (the sentence), and figures by name.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class LogFormat(StrEnum):
    """How lines on stderr are written."""

    text = "text"
    json = "json"


_format = LogFormat.text


def log_format() -> LogFormat:
    """Return the format that lines on stderr have."""
    return _format


def set_log_format(chosen: LogFormat) -> None:
    """Write lines on stderr in this format from now on."""
    global _format
    _format = chosen


def write_line(
    event: str, sentence: str, *, level: str = "info", before: str = "", **figures: Any
) -> None:
    """Write a line on stderr; `before` are words that only people need before the sentence. Figures
    are of a JSON line: numbers that are not finite become null, what JSON does not know text."""
    sys.stderr.write(line_of(event, sentence, level=level, before=before, **figures) + "\n")
    sys.stderr.flush()


def line_of(
    event: str,
    sentence: str,
    *,
    level: str = "info",
    before: str = "",
    at: float | None = None,
    **figures: Any,
) -> str:
    """Return the line that `write_line` writes, `at` so many seconds since 1970, or now."""
    if _format is LogFormat.text:
        return before + sentence
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line: dict[str, Any] = {"time": stamp, "level": level, "event": event, "message": sentence}
    for key, value in figures.items():
        line[key] = None if isinstance(value, float) and not math.isfinite(value) else value
    return json.dumps(line, default=str)


class LineFormatter(logging.Formatter):
    """Formats the records of Python's logging as lines: by a pattern of `logging.Formatter` for
    people, or as JSON with an event."""

    def __init__(self, pattern: str, event: str) -> None:
        super().__init__(pattern, "%H:%M:%S")
        self._event = event

    def format(self, record: logging.LogRecord) -> str:
        if _format is LogFormat.text:
            return super().format(record)
        level = "info" if record.levelno < logging.WARNING else "warning"
        level = "error" if record.levelno >= logging.ERROR else level
        figures = {"logger": record.name}
        if record.exc_info:
            figures["traceback"] = self.formatException(record.exc_info)
        event = "warning" if level == "warning" else self._event
        return line_of(event, record.getMessage(), level=level, at=record.created, **figures)


def log_to_stderr() -> None:
    """Log what a service does on stderr: the library's news, and others' warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(message)s", "service"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("evergram").setLevel(logging.INFO)
    if _format is LogFormat.json:
        logging.captureWarnings(True)
