"""A test of a mean over queries that holds for any number of them, and whatever they are like."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.errors import DataError

# Bets, as shares of the largest. Half of the capital is put on that one: where no query loses, no
# other bet wins as much.
BETS = 16


def betting_test(values: Tensor, mean: float) -> float:
    """Return a bound of the chance of such values if their true mean were at most `mean`.

    A player bets that values are larger: each multiplies the capital by 1 + λ (x − mean), with
    0 < λ ≤ 1 / (1 + mean), so that it stays at least 0 and does not grow on average unless the true
    mean is larger. To have C times the capital has then a chance of at most 1 / C. Several λ are
    played side by side. Where no value differs from 0 and `mean` is below it, the largest λ gives
    (1 + mean) ^ Q, the chance that losses of 1 this frequent are drawn by no query.

    Args:
        values: [Q], each of a query, from -1 to 1, drawn independently.
        mean: above -1 and below 1.
    Returns: at most 1.
    Raises: DataError: a value or the mean is beyond these.
    Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
        JRSS B 2024, §4, with bets that are fixed beforehand.
    """
    if not -1 < mean < 1 or not bool((values.abs() <= 1).all()):
        raise DataError(
            f"Values from -1 to 1 are compared with a mean between them; the mean is {mean:g} and "
            f"the values are from {float(values.min()):g} to {float(values.max()):g}."
        )
    shares = torch.arange(1, BETS + 1, dtype=torch.float64) / BETS
    weights = torch.full((BETS,), 0.5 / (BETS - 1), dtype=torch.float64)
    weights[-1] = 0.5
    bets = shares / (1 + mean)
    # Rounding may take a factor of 0 below it.
    factors = (1 + bets[:, None] * (values.double() - mean)).clamp(min=0)
    logarithm = torch.logsumexp(factors.log().sum(1) + weights.log(), dim=0)
    return float((-logarithm).exp().clamp(max=1))
