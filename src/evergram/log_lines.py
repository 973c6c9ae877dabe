"""Lines on stderr: sentences for people or, for programs, one JSON object per line.

Progress, warnings, errors and the service's log are all written here, so that with `--log-format
json` every line on stderr is JSON. The format is set for the whole process.

JSON: `time` (UTC, ISO 8601), `level` (info, warning, error), `event` (one of those listed in
docs/commands.md), `message` (the sentence), and figures by name.
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
    """The format of lines on stderr."""

    text = "text"
    json = "json"


_format = LogFormat.text


def log_format() -> LogFormat:
    """Return the current format of lines on stderr."""
    return _format


def set_log_format(chosen: LogFormat) -> None:
    """Set the format of lines on stderr."""
    global _format
    _format = chosen


def write_line(
    event: str, sentence: str, *, level: str = "info", before: str = "", **figures: Any
) -> None:
    """Write a line to stderr. `before` is a prefix that only the text format has. `figures` are
    fields that only JSON has; non-finite numbers become null, and unsupported types strings."""
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
    """Return the line that `write_line` writes; `at`: seconds since 1970, by default now."""
    if _format is LogFormat.text:
        return before + sentence
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line: dict[str, Any] = {"time": stamp, "level": level, "event": event, "message": sentence}
    for key, value in figures.items():
        line[key] = None if isinstance(value, float) and not math.isfinite(value) else value
    return json.dumps(line, default=str)


class LineFormatter(logging.Formatter):
    """Formats records of Python's logging: as text with a pattern of `logging.Formatter`, or as
    JSON with an event."""

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
    """Log to stderr: this library's records from INFO, and other libraries' from WARNING."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(message)s", "service"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("evergram").setLevel(logging.INFO)
    if _format is LogFormat.json:
        logging.captureWarnings(True)
