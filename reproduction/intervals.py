"""Means over seeds and their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

LEVEL = 0.05


def interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Return the confidence interval of a mean by Student's distribution, 95 % by default.

    Returns: None for fewer than three values, where an interval would be meaningless, and if a
        value is not finite.
    """
    if len(values) < 3 or not all(math.isfinite(value) for value in values):
        return None
    from scipy.stats import t

    half = float(t.ppf(1 - level / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    mean = fmean(values)
    return mean - half, mean + half


def holm(
    samples: Mapping[str, Sequence[float]], level: float = LEVEL
) -> dict[str, tuple[float, float]]:
    """Return the intervals of several means, at the levels of Holm's step-down procedure.

    The most significant of m comparisons is judged at level / m, the next at level / (m − 1), and
    so on. After the first that is not separable from zero, all others are judged at its level. The
    probability that any mean is wrongly separated from zero is at most `level`.

    Returns: intervals by name; empty if a sample has fewer than three values, or a value that is
        not finite.
    Source: S. Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
    """
    if not all(interval(values) for values in samples.values()):
        return {}
    found: dict[str, tuple[float, float]] = {}
    strict = len(samples)
    for name in sorted(samples, key=lambda each: _distance(samples[each]), reverse=True):
        low, high = interval(samples[name], level / strict) or (0.0, 0.0)
        found[name] = low, high
        if low > 0 or high < 0:
            strict -= 1
    return found


def separated(samples: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return "better", "worse" or "not separable" for the mean of each sample, by `holm`; empty if
    there are too few values."""
    return {
        name: "better" if low > 0 else "worse" if high < 0 else "not separable"
        for name, (low, high) in holm(samples).items()
    }


def _distance(values: Sequence[float]) -> float:
    """Return the distance of a mean from zero, in standard errors."""
    error = stdev(values) / math.sqrt(len(values))
    mean = abs(fmean(values))
    return mean / error if error else math.inf if mean else 0.0


def shown(values: Sequence[float], digits: int = 4) -> str:
    """Return a mean as text, with half the width of its interval if there is one."""
    if not values:
        return "–"
    mean, bounds = fmean(values), interval(values)
    text = f"{mean:.{digits}f}"
    return text if bounds is None else f"{text}±{bounds[1] - mean:.{digits}f}"


def gain(value: float, baseline: float) -> float:
    """Return the difference of a value from a baseline, in percent of the baseline."""
    return 100 * (value - baseline) / baseline if baseline else math.nan


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's correlation of two equally long lists without ties."""
    ranks = []
    for values in (first, second):
        order = sorted(range(len(values)), key=values.__getitem__)
        ranks.append({place: rank for rank, place in enumerate(order)})
    count = len(first)
    squares = sum((ranks[0][i] - ranks[1][i]) ** 2 for i in range(count))
    return 1 - 6 * squares / (count * (count**2 - 1))
