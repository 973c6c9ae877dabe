"""A lower bound of a mean over queries that also holds where losses are large and rare."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.errors import DataError
from evergram.evaluation.judged.paired_bootstrap import DRAWS, LEVEL


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
