"""Intervals of means and of paired differences, by a bootstrap and by an exact bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.errors import DataError, ShapeError

DRAWS = 4000
LEVEL = 0.95


@dataclass(frozen=True)
class BootstrapInterval:
    """A mean over queries, with the ends of its interval of `LEVEL`."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.low:.4f} to {self.high:.4f})"


def bootstrap(values: Tensor, seed: int = 0) -> BootstrapInterval:
    """Return the mean of a value of each query, with the percentile interval of the bootstrap.

    The queries are drawn with replacement, as many as there are, `DRAWS` times.

    Args:
        values: float [Q].
    Raises: DataError: there are no queries. ShapeError: it is not a list of numbers.
    Source: Efron, "Bootstrap methods: another look at the jackknife", 1979.
    """
    if values.dim() != 1:
        raise ShapeError(f"The values are {list(values.shape)}; one for each query is needed, [Q].")
    if not len(values):
        raise DataError("There are no queries to take a mean over; give at least one.")
    values = values.double()
    draw = torch.Generator().manual_seed(seed)
    means = torch.empty(DRAWS, dtype=torch.float64)
    # Some draws at a time, so that memory does not grow with both numbers.
    step = max(1, (1 << 20) // len(values))
    for start in range(0, DRAWS, step):
        part = means[start : start + step]
        rows = torch.randint(len(values), (len(part), len(values)), generator=draw)
        part.copy_(values[rows].mean(1))
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    low, high = means.quantile(ends).tolist()
    return BootstrapInterval(float(values.mean()), low, high)


def paired_bootstrap(values: Tensor, others: Tensor, seed: int = 0) -> BootstrapInterval:
    """Return the mean of `values` − `others`, both [Q] of the same queries, with its interval.

    Query by query, as hard queries are hard for every method: the interval of the difference is
    then far narrower than the intervals of the two means.

    Raises: ShapeError: they are of different queries. DataError: as of `bootstrap`.
    """
    if values.shape != others.shape:
        raise ShapeError(
            f"The values are {list(values.shape)} and the others {list(others.shape)}; both must "
            "be of the same queries."
        )
    return bootstrap(values.double() - others.double(), seed)


def mean_bound(values: Tensor, seed: int = 0) -> float:
    """Return a value that the true mean is below in at most 5 % of samples, 1 − `LEVEL`.

    It is a quantile of the Bayesian bootstrap (weights uniform on the simplex) of the queries and
    one more, whose value is −1, the least there can be. The weight of that query stands for those
    that were not drawn: where no value differs from 0, the bound is that of Clopper and Pearson for
    losses of 1, and where many differ, it is near the end of a normal interval. Each weight is at
    least 0 and the same for all values, so the bound never falls where a value rises.

    That it holds for every distribution is Gaffke's conjecture, of which no exception is known; a
    test sums over all samples of distributions of two values, rare large losses included.

    Args:
        values: [Q], each of a query, from -1 to 1, drawn independently.
    Raises: DataError: a value is beyond these, or there are none.
    Source: Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a
        nonnegative variable", 2005; Learned-Miller and Thomas, "A New Confidence Interval for the
        Mean of a Bounded Random Variable", 2019.
    """
    if not len(values) or not bool((values.abs() <= 1).all()):
        between = f"{float(values.min()):g} to {float(values.max()):g}" if len(values) else "absent"
        raise DataError(f"The values are {between}; give at least one, all from -1 to 1.")
    worst = torch.cat([values.double(), torch.tensor([-1.0], dtype=torch.float64)])
    draw = torch.Generator().manual_seed(seed)
    means = torch.empty(DRAWS, dtype=torch.float64)
    # Some draws at a time, so that memory does not grow with both numbers.
    step = max(1, (1 << 20) // len(worst))
    for start in range(0, DRAWS, step):
        part = means[start : start + step]
        weights = torch.empty(len(part), len(worst), dtype=torch.float64)
        weights.exponential_(generator=draw)
        part.copy_(weights @ worst / weights.sum(1))
    return float(means.quantile(1 - LEVEL))
