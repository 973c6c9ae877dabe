"""Whether codes tell the best rows of a search apart from those that they left out."""

from __future__ import annotations

import numpy as np

from evergram.stores.rows import Floats

# A query that `oversample` rows for each result do not answer gets so many times as many.
WIDER = 4


def looked_at(k: int, oversample: int) -> tuple[int, int]:
    """Return how many rows codes choose for k results, and how many where these do not suffice."""
    return oversample * k, WIDER * oversample * k


def tell_apart(scores: Floats, estimates: Floats, k: int) -> bool:
    """Say whether none of the rows that codes left out can be among the k best.

    A row that was left out, with an estimate as large as the smallest and as much too small as any
    that was looked at, must not be better than the k-th. It may be where a query weighs most what
    codes hold least of, as a search by distance does with the squared lengths behind a vector.

    Args:
        scores: [n] of the rows that were looked at, n at least k.
        estimates: [n], by which codes chose them.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        limit = estimates.min() + (scores - estimates).max(initial=0.0)
    return bool(np.partition(scores, -k)[-k] >= limit)
