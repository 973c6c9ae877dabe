"""The plan of a backfill and its progress, in two JSON files of its folder."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evergram.atomic_files import write_text
from evergram.errors import IntegrityError

STATES = ("planned", "under way", "applied", "rolling back", "rolled back")


@dataclass(frozen=True)
class BackfillPlan:
    """The facts of a backfill that do not change while it runs.

    Args:
        side, store: the side, and the store's address.
        target, fingerprint: of the version that rows are refreshed to.
        batch: rows that are refreshed at once.
        rows: how many are to be refreshed.
        without: older rows for which the version has no embedding.
        absent: objects of the version without a row.
    """

    side: str
    store: str
    target: int
    fingerprint: str
    batch: int
    rows: int
    without: int
    absent: int


@dataclass(frozen=True)
class BackfillStatus:
    """The progress of a backfill.

    Args:
        state: one of `STATES`.
        target: the version that rows are refreshed to.
        rows: how many are to be refreshed.
        refreshed: how many of these are.
        without: older rows for which the version has no embedding; they stay as they are.
        absent: objects of the version that had no row when it was planned; none is added.
        remaining: mean predicted error of rows that wait, over that of all rows to refresh.
        held: rows of the store by version, now.
    """

    state: str
    side: str
    store: str
    target: int
    rows: int
    refreshed: int
    without: int
    absent: int
    remaining: float
    held: dict[int, int]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class BackfillState:
    """Reads and writes `plan.json` and `progress.json` of a folder.

    Args:
        mode: permissions of the files.
    """

    def __init__(self, folder: Path, mode: int) -> None:
        self.plan_path: Path = folder / "plan.json"
        self._progress_path = folder / "progress.json"
        self._mode = mode
        self._run: dict[str, float] = {}

    @property
    def is_planned(self) -> bool:
        return self.plan_path.exists()

    def plan(self) -> BackfillPlan:
        """Return the plan. Raises: IntegrityError: it cannot be read."""
        kinds: dict[str, type] = dict.fromkeys(("side", "store", "fingerprint"), str)
        kinds |= dict.fromkeys(("target", "batch", "rows", "without", "absent"), int)
        facts = _read_facts(self.plan_path, kinds)
        if not facts["batch"]:
            raise _unreadable(self.plan_path, "batch is 0")
        return BackfillPlan(**{name: facts[name] for name in kinds})

    def progress(self) -> tuple[str, int]:
        """Return the state and how many rows are refreshed; see `BackfillStatus`.

        Raises: IntegrityError: it cannot be read.
        """
        facts = _read_facts(self._progress_path, {"state": str, "done": int})
        if facts["state"] not in STATES:
            raise _unreadable(self._progress_path, f"state is {facts['state']!r}")
        return facts["state"], facts["done"]

    def write_plan(self, plan: BackfillPlan) -> None:
        """Replace the plan, and begin its progress anew; the plan is there when both are."""
        self.write_progress("planned", 0)
        write_text(self.plan_path, json.dumps(asdict(plan), indent=2), self._mode)

    def begin_run(self, done: int) -> None:
        """Write that rows are refreshed from now on, so that a rate can be told from here."""
        self._run = {"since": time.time(), "from": done}
        self.write_progress("under way", done)

    def write_progress(self, state: str, done: int, *, paused: bool = False) -> None:
        """Replace the progress, with the time: who reads it later can tell whether it still moves.

        Args:
            paused: whether it stops here because it was asked to, with rows left.
        """
        facts = {"state": state, "done": done, "at": time.time(), "paused": paused, **self._run}
        write_text(self._progress_path, json.dumps(facts), self._mode)


def _read_facts(path: Path, kinds: dict[str, type]) -> dict[str, Any]:
    """Return the facts in a file.

    Args:
        kinds: the type of each fact that must be there; numbers must not be negative.
    Raises: IntegrityError: the file cannot be read, or a fact is missing.
    """
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
        for name, kind in kinds.items():
            if type(facts[name]) is not kind or (kind is int and facts[name] < 0):
                raise ValueError(f"{name} is {facts[name]!r}")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(path, error) from error
    return facts


def _unreadable(path: Path, why: object) -> IntegrityError:
    return IntegrityError(
        f"{path} cannot be read: {why}. Remove {path.parent} and plan again; rows that were "
        "refreshed stay so."
    )
