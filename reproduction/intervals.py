"""Means over seeds and their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

# 97.5 % points of Student's distribution, by degrees of freedom; the last holds for more.
_POINTS = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean by Student's distribution; None for fewer than three
    values, of which an interval would say more about chance than about the mean, and where a value
    is not finite."""
    if len(values) < 3 or not all(math.isfinite(value) for value in values):
        return None
    point = _POINTS[min(len(values) - 1, len(_POINTS)) - 1]
    half = point * stdev(values) / math.sqrt(len(values))
    mean = fmean(values)
    return mean - half, mean + half


def shown(values: Sequence[float], digits: int = 4) -> str:
    """Return a mean as text, with half the width of its interval where there is one."""
    if not values:
        return "–"
    mean, bounds = fmean(values), interval(values)
    text = f"{mean:.{digits}f}"
    return text if bounds is None else f"{text} ± {bounds[1] - mean:.{digits}f}"


def gain(value: float, baseline: float) -> float:
    """Return how much more a value is than a baseline, in percent of the baseline."""
    return 100 * (value - baseline) / baseline if baseline else math.nan
