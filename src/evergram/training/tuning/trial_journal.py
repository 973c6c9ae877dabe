"""Keep the trials of a search that have ended, one JSON line each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import Timeout

from evergram.atomic_files import make_folder, write_text
from evergram.errors import RecipeError, TrainingError
from evergram.file_lock import file_lock
from evergram.training.checkpoints.run_identity import RunIdentity
from evergram.training.tuning.proposals import Trial
from evergram.training.tuning.search_space import SearchSpace

NAME, LOCK = "trials.jsonl", ".lock"
FORMAT = "evergram-trials/1"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other processes from searching in a folder; nothing empty stays of it.

    Raises: RecipeError: another process searches there. TrainingError: it cannot be written.
    """
    lock, made = file_lock(folder / LOCK, timeout=0), not folder.exists()
    try:
        make_folder(folder)
        lock.acquire()
    except Timeout:
        raise RecipeError(
            f"Another process searches in {folder}; wait for it, or give another folder."
        ) from None
    except OSError as error:
        raise TrainingError(
            f"The trials cannot be kept in {folder}: {error.strerror or error}; make room there, "
            "or choose another folder."
        ) from error
    try:
        yield
    finally:
        # Removed while it is held: afterwards it may be another process's lock.
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        if made:
            with suppress(OSError):  # it has trials
                folder.rmdir()


class TrialJournal:
    """The ended trials of one recipe, its data and one space, in a folder.

    Args:
        folder: of the file `trials.jsonl`: its first line says what was searched, each further
            line is a trial.
        identity: of the recipe and its data.
    Raises: RecipeError: the folder has trials of another search, or a file that is none.
    """

    def __init__(self, folder: Path, identity: RunIdentity, space: SearchSpace) -> None:
        self.path: Path = folder / NAME
        self.head: dict[str, Any] = {
            "format": FORMAT,
            "identity": identity.as_json(),
            "space": [asdict(one) for one in space.ranges],
        }
        self.trials: list[Trial] = []
        if self.path.is_file():
            head, self.trials = self._read()
            self._refuse_another(head, identity)

    def add(self, trial: Trial) -> None:
        """Keep a trial. Raises: TrainingError: the file cannot be written."""
        self.trials.append(trial)
        lines = [self.head, *map(asdict, self.trials)]
        try:
            make_folder(self.path.parent)
            write_text(self.path, "\n".join(json.dumps(line) for line in lines))
        except OSError as error:
            raise TrainingError(
                f"The trials cannot be kept in {self.path.parent}: {error.strerror}; make room "
                "there, or choose another folder."
            ) from error

    def _read(self) -> tuple[dict[str, Any], list[Trial]]:
        try:
            head, *lines = map(json.loads, self.path.read_text().splitlines())
            if head["format"] != FORMAT:
                raise ValueError(f"its format is {head['format']!r}, not {FORMAT!r}")
            return head, [_trial(line) for line in lines]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecipeError(
                f"{self.path} is no journal of trials ({error}); give another folder, or remove it."
            ) from None

    def _refuse_another(self, head: Mapping[str, Any], identity: RunIdentity) -> None:
        what = identity.difference(head.get("identity") or {})
        if not what and json.loads(json.dumps(self.head["space"])) != head.get("space"):
            what = "other keys or values to search over"
        if what:
            raise RecipeError(
                f"{self.path.parent} has the trials of {what}; give another folder, or remove it."
            )


def _trial(line: Mapping[str, Any]) -> Trial:
    history: Sequence[tuple[int, float]] = [(int(e), float(v)) for e, v in line["history"]]
    trial = Trial(**{**line, "history": history})
    if trial.state not in ("finished", "pruned", "failed"):
        raise ValueError(f"a trial's state is {trial.state!r}")
    return trial
