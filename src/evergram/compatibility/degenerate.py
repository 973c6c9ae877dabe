"""The rule for vectors that can be published or aligned: their lengths, zeros and spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evergram.compatibility.second_moments import SecondMoments

# A spread below this share of the mean square is rounding.
ROUNDING = 1e-10
# Lengths whose squares float32 holds, as searches need them; a shorter vector is a zero.
SHORTEST, LONGEST = 1e-15, 1e15
# The share of one side's vectors that may be zeros, as failed calls of an encoder leave them.
MOST_ZEROS = 0.05


@dataclass
class LengthCount:
    """Counts vectors without a length, over any number of blocks."""

    rows: int = 0
    zeros: int = 0

    def add(self, vectors: Tensor) -> int | None:
        """Count vectors [n, D]. Returns: the first row that is longer than `LONGEST` or not
        finite, if one is."""
        lengths = torch.linalg.vector_norm(vectors.detach(), dim=1, dtype=torch.float64)
        self.rows += len(lengths)
        self.zeros += int((lengths < SHORTEST).sum())
        long = (~(lengths <= LONGEST)).nonzero()
        return int(long[0]) if len(long) else None


def vectors_problem(
    rows: int, zeros: int, second: Tensor, spread: Tensor, most_zeros: float = MOST_ZEROS
) -> str | None:
    """Return why vectors of one side cannot be published or aligned, as the end of a sentence; None
    if they can.

    Args:
        zeros: how many of the rows are zeros; `most_zeros` is the share that may be.
        second, spread: E[z zᵀ] [D, D], of all rows or of a sample, and the same of z − E[z].
    """
    if zeros > most_zeros * rows:
        return f"{zeros} of {rows} are zero, and {most_zeros:.0%} may be"
    length = float(second.trace()) ** 0.5
    if not SHORTEST <= length <= LONGEST:
        return (
            f"their length is {length:.3g} (root mean square), and {SHORTEST:g} to {LONGEST:g} is "
            "allowed"
        )
    if rows > 1 and float(spread.trace()) <= ROUNDING * float(second.trace()):
        return "all of them are the same"
    # Two vectors are always on a line, and so are numbers.
    if rows > 2 and len(spread) > 1 and _is_line(spread):
        return "all of them lie on one line"
    return None


def degenerate_side(
    moments: SecondMoments, zeros: tuple[int, int], most_zeros: float = MOST_ZEROS
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
        problem = vectors_problem(
            *(moments.count, zero, square[place], spread[place]), most_zeros=most_zeros
        )
        if problem is not None:
            return side, problem
    return None


def _is_line(spread: Tensor) -> bool:
    """Whether one eigenvalue is the sum of all: (Σλ)² − Σλ² is twice it times the others."""
    trace = float(spread.trace())
    return trace**2 - float(spread.square().sum()) <= 2 * ROUNDING * trace**2
