"""Intervals of a mean over queries, and of the difference of two methods on the same queries."""

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
