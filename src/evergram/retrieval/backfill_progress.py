"""The progress of a lineage's backfills, read from their files without opening a store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNREADABLE = "cannot be read; plan again"


@dataclass(frozen=True)
class BackfillProgress:
    """The progress of one backfill; see `Backfill`.

    Args:
        version: the one that rows are refreshed to.
        done, total: rows.
        state: "planned", "under way", "applied" or "rolled back".
    """

    side: str
    version: int
    done: int
    total: int
    state: str


def backfill_progress(lineage: Path) -> list[BackfillProgress]:
    """Return every backfill that is planned, under way or done; of a store, the last one.

    A plan that is still being made is left out; one whose files are damaged says so in its state.

    Args:
        lineage: its folder.
    """
    plans = sorted((lineage / "backfills").glob("*/plan.json"))
    return [_read(plan) for plan in plans if plan.is_file()]


def _read(path: Path) -> BackfillProgress:
    side = path.parent.name.rpartition("-")[0]
    try:
        plan = json.loads(path.read_text())
        at = json.loads((path.parent / "progress.json").read_text())
        return BackfillProgress(
            str(plan["side"]),
            _number(plan["target"]),
            _number(at["done"]),
            _number(plan["rows"]),
            str(at["state"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return BackfillProgress(side, 0, 0, 0, UNREADABLE)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no number of rows")
    return value
