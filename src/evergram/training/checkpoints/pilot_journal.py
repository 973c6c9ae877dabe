"""The values of pilots that have ended, in a file, so that an interrupted choice goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evergram.atomic_files import make_folder, write_text
from evergram.errors import TrainingError
from evergram.training.checkpoints.run_identity import RunIdentity
from evergram.training.checkpoints.settings import AUTOMATIC, CheckpointSettings


class PilotJournal:
    """Measures each pilot once, whatever processes are killed between two of them.

    Args:
        folder: where the file is; None keeps nothing.
        title: of the run that the pilots choose settings for.
        identity: of that run; a file of another one is replaced. None only without a folder.
        settings: with `resume` "never" the file is not read.
    """

    def __init__(
        self,
        folder: Path | None,
        title: str,
        identity: RunIdentity | None = None,
        settings: CheckpointSettings = AUTOMATIC,
    ) -> None:
        self.path: Path | None = (
            None if folder is None else folder / f"{title.replace(' ', '-')}.pilots.json"
        )
        self.identity = identity
        self._values: dict[str, float] = {}
        if settings.resume == "auto":
            self._values = self._read()

    def get(self, settings: Mapping[str, Any]) -> float | None:
        """Return the value of a pilot with these settings, as JSON; None if none has ended."""
        return self._values.get(_key(settings))

    def add(self, settings: Mapping[str, Any], value: float) -> None:
        """Keep the value of a pilot. Raises: TrainingError: the file cannot be written."""
        self._values[_key(settings)] = value
        self._write()

    def _read(self) -> dict[str, float]:
        if self.path is None or self.identity is None or not self.path.is_file():
            return {}
        try:
            written = json.loads(self.path.read_text())
            if self.identity.difference(written["identity"]):
                return {}
            return {str(key): float(value) for key, value in written["values"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}  # a pilot takes seconds: measure it again

    def _write(self) -> None:
        if self.path is None or self.identity is None:
            return
        content = {"identity": self.identity.as_json(), "values": self._values}
        try:
            make_folder(self.path.parent)
            write_text(self.path, json.dumps(content))
        except OSError as error:
            raise TrainingError(
                f"What the pilots measured cannot be kept in {self.path.parent}: {error.strerror}; "
                "make room there, or choose another --lineage."
            ) from error


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(dict(settings), sort_keys=True)
