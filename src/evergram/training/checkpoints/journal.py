"""What has ended of a run, in a file, so that the run goes on after it was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evergram.atomic_files import make_folder, write_text
from evergram.errors import TrainingError


class Journal:
    """JSON lines of what has ended; the file's first line says of which run.

    Args:
        path: of the file; None keeps nothing.
        head: the first line.
    """

    def __init__(self, path: Path | None, head: Mapping[str, Any]) -> None:
        self.path = path
        self.head: dict[str, Any] = json.loads(json.dumps(head))
        self.lines: list[dict[str, Any]] = []

    def read(self) -> dict[str, Any]:
        """Take the lines of the file, and return its first one; without a file, `head`.

        Raises: ValueError: the file is not a journal.
        """
        if self.path is None or not self.path.is_file():
            return self.head
        try:
            head, *self.lines = map(json.loads, self.path.read_text().splitlines())
        except OSError as error:
            raise ValueError(error.strerror) from None
        if not all(isinstance(line, dict) for line in (head, *self.lines)):
            raise ValueError("a line is not a table")
        return dict(head)

    def add(self, line: Mapping[str, Any]) -> None:
        """Keep a line. Raises: TrainingError: the file cannot be written."""
        self.lines.append(dict(line))
        if self.path is None:
            return
        try:
            make_folder(self.path.parent)
            write_text(self.path, "\n".join(map(json.dumps, [self.head, *self.lines])))
        except OSError as error:
            raise TrainingError(
                f"{self.path} cannot be written: {error.strerror}; make room there, or choose "
                "another folder."
            ) from error
