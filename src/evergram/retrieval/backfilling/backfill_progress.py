"""The progress of a lineage's backfills, read from their files without opening a store."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNREADABLE = "cannot be read; plan again"
# A backfill has stalled when it wrote nothing for so many seconds, and for the time of so many of
# its batches.
PATIENCE, BATCHES = 60.0, 5


@dataclass(frozen=True)
class BackfillProgress:
    """The progress of one backfill; see `Backfill`.

    Args:
        version: the one that rows are refreshed to.
        done, total: rows.
        state: "planned", "under way", "paused" (`apply` stopped after the rows that it was asked
            for), "stalled" (under way, and nothing was written for long: `apply` hangs, failed or
            was killed), "applied" or "rolled back".
        rate: rows a second in the last run of `apply`; None where it is not known.
        idle: seconds since the progress was last written.
    """

    side: str
    version: int
    done: int
    total: int
    state: str
    rate: float | None = None
    idle: float | None = None

    @property
    def left(self) -> float | None:
        """Seconds until all rows are done at this rate; None if not running or not known."""
        if self.state != "under way" or not self.rate:
            return None
        return (self.total - self.done) / self.rate


def backfill_progress(lineage: Path, now: float | None = None) -> list[BackfillProgress]:
    """Return every backfill that is planned, under way or done; of a store, the last one.

    A plan that is still being made is left out; one whose files are damaged says so in its state.

    Args:
        lineage: its folder.
        now: seconds since 1970, to which the times in the files are compared; by default the clock.
    """
    plans = sorted((lineage / "backfills").glob("*/plan.json"))
    clock = time.time() if now is None else now
    return [_read(plan, clock) for plan in plans if plan.is_file()]


def _read(path: Path, now: float) -> BackfillProgress:
    side = path.parent.name.rpartition("-")[0]
    try:
        plan = json.loads(path.read_text())
        progress = path.parent / "progress.json"
        # Before the content: if it is replaced in between, its own time is the later one.
        changed = progress.stat().st_mtime
        at = json.loads(progress.read_text())
        done, state, written = _number(at["done"]), str(at["state"]), _time(at.get("at", changed))
        since = _time(at["since"]) if "since" in at else None
        rows = done - _number(at["from"]) if since is not None else 0
        rate = (
            rows / (written - since) if since is not None and rows > 0 and written > since else None
        )
        idle = now - written
        if state == "under way":
            batch = _number(plan["batch"]) / rate if rate and "batch" in plan else 0.0
            # A time ahead of this machine's clock says as little as one that is long past.
            moves = abs(idle) <= max(PATIENCE, BATCHES * batch)
            state = "paused" if at.get("paused") is True else state if moves else "stalled"
        version, total = _number(plan["target"]), _number(plan["rows"])
        return BackfillProgress(str(plan["side"]), version, done, total, state, rate, idle)
    except (OSError, ValueError, KeyError, TypeError):
        return BackfillProgress(side, 0, 0, 0, UNREADABLE)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a number of rows")
    return value


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is not a time")
    return float(value)
