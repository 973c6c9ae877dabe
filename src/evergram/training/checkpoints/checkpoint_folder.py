"""The checkpoints of one run: written in time, the last few kept, damaged ones passed over."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

from evergram.errors import FormatError, IntegrityError
from evergram.training.checkpoints.run_identity import RunIdentity
from evergram.training.checkpoints.settings import AUTOMATIC, CheckpointSettings
from evergram.training.checkpoints.state_file import StateReader, StateWriter, TrainingState

SUFFIX = ".safetensors"
log: logging.Logger = logging.getLogger(__name__)


class CheckpointFolder:
    """Keeps the newest checkpoints of a run, `TITLE.STEPS.safetensors`, in a folder.

    Of several processes that train together, one decides when a checkpoint is due.

    Args:
        folder: removed when the version is published; None saves nothing.
        title: the run's name in the folder, and in sentences.
        identity: of the run; None only without a folder.
        settings: when checkpoints are written, how many are kept, and whether they are read.
    """

    def __init__(
        self,
        folder: Path | None,
        title: str,
        identity: RunIdentity | None = None,
        settings: CheckpointSettings = AUTOMATIC,
    ) -> None:
        self.folder = folder
        self.title = title
        self.identity = identity
        self.settings = settings
        self.reader: StateReader = StateReader()
        self.writer: StateWriter = StateWriter()
        self._saved, self._steps, self._cost = time.monotonic(), 0, 0.0
        # Checkpoints of this run, oldest first, as far as they are known to be whole.
        self._kept: list[Path] = []

    def due(self, steps: int) -> bool:
        """Whether the last checkpoint is long enough ago.

        Args:
            steps: of the run so far.
        """
        if self.folder is None:
            return False
        seconds = time.monotonic() - self._saved
        return self.settings.due(seconds, steps - self._steps, self._cost)

    def save(self, state: TrainingState, steps: int) -> None:
        """Write a checkpoint, and remove those that are not kept.

        Args:
            steps: of the run so far.
        Raises: TrainingError: it cannot be written; an earlier one is still there.
        """
        if self.folder is None or self.identity is None:
            return
        started = time.monotonic()
        path = self.folder / f"{_stem(self.title)}.{steps:012d}{SUFFIX}"
        kept = [p for p in self._kept if p != path]
        # Make room first: on a full disk one good checkpoint is worth more than none.
        # With one to keep, or one there, it stays until the next one is whole.
        self._drop(kept[: max(0, len(kept) - max(1, self.settings.keep - 1))])
        self.writer.write(path, self.identity.as_json(), state)
        self._kept = [*(p for p in kept if p.exists()), path][-self.settings.keep :]
        self._drop([p for p in self._paths() if p not in self._kept])
        self._saved, self._steps = time.monotonic(), steps
        self._cost = self._saved - started

    def load(self) -> TrainingState | None:
        """Return the newest state of this run that is whole; None if there is none.

        With `resume` "never" every checkpoint of the run's title is removed. What is damaged or of
        another run is said in a warning.
        """
        if self.folder is None or self.identity is None:
            return None
        paths = self._paths()
        if self.settings.resume == "never":
            if paths:
                newest = paths[-1].name
                log.warning(f"--resume never: drops {newest}, and trains {self.title} anew.")
            self._drop(paths)
            return None
        state, matching = None, []
        refused: list[str] = []
        for path in reversed(paths):
            reason = self._refusal(path)
            if not reason and state is None:
                try:
                    state = self.reader.read(path)
                except IntegrityError as error:
                    reason = str(error)
            if not reason:
                matching.append(path)
            elif state is None:
                refused.append(reason)
        self._kept = matching[::-1]
        for sentence in refused[:-1] if state is None else refused:
            log.warning(f"{sentence} The checkpoint before it is tried.")
        if state is None and refused:
            log.warning(
                f"{refused[-1]} So {self.title} is trained from its start, and its first "
                "checkpoint replaces this one."
            )
        return state

    def _refusal(self, path: Path) -> str:
        """Return why a checkpoint is not one of this run, as a sentence; "" if it is one."""
        assert self.identity is not None
        try:
            difference = self.identity.difference(self.reader.identity(path))
        except (IntegrityError, FormatError) as error:
            return str(error)
        return f"{path.name} is of {difference}." if difference else ""

    def _paths(self) -> list[Path]:
        """Return the files of the run's title, oldest first."""
        assert self.folder is not None
        name = re.compile(rf"{re.escape(_stem(self.title))}\.\d{{12}}{re.escape(SUFFIX)}")
        if not self.folder.is_dir():
            return []
        return sorted(
            (p for p in self.folder.iterdir() if name.fullmatch(p.name)),
            key=lambda path: path.name.removesuffix(SUFFIX),
        )

    def _drop(self, paths: list[Path]) -> None:
        for path in paths:
            self.writer.remove(path)


def _stem(title: str) -> str:
    return title.replace(" ", "-")
