"""The record of a benchmark section: its machine and versions, and the figures of its tables."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reproduction.evidence import commit
from reproduction.results import machine, versions

# The load per core above which the machine counts as busy with other work.
BUSY = 0.25
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def new_record() -> dict[str, Any]:
    """Return an empty record for a section that starts now."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        # Load average of the last minute.
        "load": round(os.getloadavg()[0], 2),
    }


def circumstances(record: dict[str, Any]) -> str:
    """Return the commit and day of a record, and whether the machine was busy with other work."""
    made = f"Commit {record['commit'] or 'unknown'}, {record['date'][:10]}."
    load, cores = record["load"], record["machine"]["cores"]
    if load <= BUSY * cores:
        return made
    return (
        f"{made} The machine was busy: load {load:.1f} on {cores} cores when the run started, so "
        "times are less reliable."
    )


def figures_of(text: str) -> dict[tuple[str, str], float]:
    """Return the first number in each cell of a text's Markdown tables, by row and column.

    Rows are named by their first cell; repeated names get " (2)", " (3)", … appended.
    """
    figures: dict[tuple[str, str], float] = {}
    rows: set[str] = set()
    columns: list[str] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        # A bar inside a cell, such as |B|, is escaped.
        cells = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
        first, *rest = [cell.strip() for cell in cells]
        if not inside:
            columns, inside = rest, True
            continue
        if first and set(first) <= set("-: "):
            continue
        row, again = first, 2
        while row in rows:
            row, again = f"{first} ({again})", again + 1
        rows.add(row)
        for column, cell in zip(columns, rest, strict=True):
            if number := _NUMBER.search(cell):
                figures[row, column] = float(number[0].replace(",", ""))
    return figures


@dataclass(frozen=True)
class Kept:
    """A folder of saved results, by key, so that an interrupted section can resume."""

    folder: Path

    def get(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of `key`, computed and saved if it is missing."""
        path = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        if not path.is_file():
            made = make()  # before creating the folder, in case it fails
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = {"of": key, "commit": commit(), "result": made}
            path.write_text(json.dumps(kept, indent=1) + "\n")
        found: dict[str, Any] = json.loads(path.read_text())["result"]
        return found
