"""The table of `which_loss`: recall by data and objective, and which differ from the default loss.

A loss is above or below the default on a data set where the 95 % interval of their difference, over
seeds and paired by split, is on one side of zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from benchmarks.defaults import STUDENT, interval

DEFAULT = "squared"


@dataclass(frozen=True)
class Row:
    """A data set: Recall@20 on the test pairs by objective, a value a seed; and popularity's.

    Args:
        recalls: of the objectives that were measured on it.
    """

    data: str
    recalls: Mapping[str, list[float]]
    popularity: float

    def gains(self, objective: str) -> list[float] | None:
        """Return its recalls minus the default loss's on the same split; None if either was not
        measured."""
        if objective not in self.recalls or DEFAULT not in self.recalls:
            return None
        pairs = zip(self.recalls[objective], self.recalls[DEFAULT], strict=True)
        return [own - default for own, default in pairs]


def tables(rows: Sequence[Row]) -> str:
    """Return Recall@20 by data and objective, and which objectives differ from the default."""
    names = list(dict.fromkeys(name for row in rows for name in row.recalls))
    lines = [f"| data | {' | '.join(names)} | popularity |", "|---" * (len(names) + 2) + "|"]
    for row in rows:
        cells = [interval(row.recalls[n], 4) if n in row.recalls else "–" for n in names]
        lines.append(f"| {row.data} | {' | '.join(cells)} | {row.popularity:.4f} |")
    others = [name for name in names if name != DEFAULT]
    seeds = max(len(values) for row in rows for values in row.recalls.values())
    lines += [
        "",
        f"± is half of the 95 % interval of the mean over {seeds} seeds, each with a split of its "
        "own; objectives are compared on the same split. – was not measured.",
        "",
        verdict(rows, others),
    ]
    return "\n".join(lines)


def verdict(rows: Sequence[Row], others: Sequence[str]) -> str:
    """Return which losses are above or below the default beyond their interval, and whether one of
    them becomes it: the one that is above on all data, or none."""
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for row in rows:
        for name in others:
            if (gains := row.gains(name)) and len(gains) > 1:
                half = STUDENT.get(len(gains), 2.0) * stdev(gains) / math.sqrt(len(gains))
                if mean(gains) > half:
                    above.setdefault(name, []).append(row.data)
                elif mean(gains) < -half:
                    below.setdefault(name, []).append(row.data)
    everywhere = [name for name, where in above.items() if len(where) == len(rows)]
    kept = f"On all data: {', '.join(everywhere) or 'none, so the default stays'}."
    return (
        f"Above {DEFAULT} by more than the interval: {_listed(above)}. "
        f"Below it by more than the interval: {_listed(below)}. {kept}"
    )


def _listed(where: Mapping[str, Sequence[str]]) -> str:
    parts = [f"{name} ({'; '.join(data)})" for name, data in where.items()]
    return ", ".join(parts) or "none"
