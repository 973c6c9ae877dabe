"""What a section has measured: figures, each with its repeated measurements."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Figure:
    """One figure of a section.

    Args:
        row, column: name it; together they are unique in a section.
        values: its measurements, one or more.
    """

    row: str
    column: str
    values: Sequence[float]

    @property
    def name(self) -> tuple[str, str]:
        return self.row, self.column

    @property
    def middle(self) -> float:
        """The median of the measurements."""
        return median(self.values)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it, with six digits; what is no finite number is None."""
        values = [float(f"{v:.6g}") if math.isfinite(v) else None for v in self.values]
        return {**asdict(self), "values": values}


def figure_of(plain: Mapping[str, Any]) -> Figure:
    """Return a figure of JSON. Raises: TypeError, KeyError, ValueError: it is none."""
    values = [math.nan if v is None else float(v) for v in plain["values"]]
    if not values:
        raise ValueError("a figure has no values")
    return Figure(str(plain["row"]), str(plain["column"]), values)


def figures_of_table(table: str) -> list[Figure]:
    """Return the first number of each cell of the Markdown tables in a text.

    Rows are named by their first cell, and by how often it came before if it occurs twice.
    """
    figures: dict[tuple[str, str], Figure] = {}
    rows: set[str] = set()
    columns: list[str] = []
    inside = False
    for line in table.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        # A bar inside a cell, as of |B|, is escaped.
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
                value = float(number[0].replace(",", ""))
                figures[row, column] = Figure(row, column, [value])
    return list(figures.values())


def together(repeats: Iterable[Sequence[Figure]]) -> list[Figure]:
    """Return the figures of several measurements of a section, each with the values of all."""
    values: dict[tuple[str, str], list[float]] = {}
    for figures in repeats:
        for figure in figures:
            values.setdefault(figure.name, []).extend(figure.values)
    return [Figure(*name, each) for name, each in values.items()]
