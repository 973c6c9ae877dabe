"""The record of a benchmark run: its machine and versions, and the figures of its tables."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import UTC, datetime
from typing import Any

from reproduction.results import machine, versions

from benchmarks import ROOT

# The load per core above which the machine counts as busy with other work.
BUSY = 0.25
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def new_record() -> dict[str, Any]:
    """Return an empty record for a run that starts now."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "commit": _commit(),
        # Load average of the last minute.
        "load": round(os.getloadavg()[0], 2),
        "sections": {},
    }


def busy_note(record: dict[str, Any]) -> str:
    """Return a note that the machine was busy with other work, or "" if it was not."""
    load, cores = record["load"], record["machine"]["cores"]
    if load <= BUSY * cores:
        return ""
    return (
        f"The machine was busy: load {load:.1f} on {cores} cores when the run started, so the "
        "figures are less reliable."
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


def _commit() -> str:
    """Return the commit of this checkout, with "+" if tracked files changed; "" without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
