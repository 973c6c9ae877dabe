"""Detect vectors that no map can be fitted to: mostly zero, all equal, or all on one line."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from evergram.compatibility.second_moments import SecondMoments

# A spread below this share of the mean square is rounding.
ROUNDING = 1e-10


def degenerate_side(
    moments: SecondMoments, zeros: tuple[int, int]
) -> tuple[Literal["old", "new"], str] | None:
    """Return the side whose vectors cannot be aligned, and the reason; None if both can.

    Args:
        moments: of all pairs.
        zeros: how many of the old and of the new vectors are zero.
    Raises: DataError: there are no pairs.
    """
    square, spread = moments.second(), moments.second(centred=True)
    sides: tuple[tuple[Literal["old", "new"], int, int], ...] = (
        ("old", 2, zeros[0]),
        ("new", 0, zeros[1]),
    )
    for side, place, zero in sides:
        if 2 * zero > moments.count:
            return side, f"{zero} of {moments.count} are zero"
        if float(spread[place].trace()) <= ROUNDING * float(square[place].trace()):
            return side, "all of them are the same"
        if len(spread[place]) > 1 and _is_line(spread[place]):
            return side, "all of them lie on one line"
    return None


def _is_line(spread: Tensor) -> bool:
    largest = float(torch.linalg.eigvalsh(spread)[-1])
    return float(spread.trace()) - largest <= ROUNDING * largest
