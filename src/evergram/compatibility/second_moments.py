"""Second moments of pairs (z_{k-1}, z_k), from which alignment is solved in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evergram.collectives import Collectives
from evergram.errors import DataError, ShapeError

# Columns multiplied at once; blocks below the diagonal are never computed.
PANEL = 256
# A spread below this share of the mean square is rounding.
ROUNDING = 1e-10
# Lengths whose squares float32 holds, as searches need them; a shorter vector is a zero.
SHORTEST, LONGEST = 1e-15, 1e15
# The share of one side's vectors that may be zeros, as failed calls of an encoder leave them.
MOST_ZEROS = 0.05


class SecondMoments:
    """Counts, sums and second moments of pairs of vectors, from one pass, in float64.

    With x = (1, z_k, z_{k-1}) they are one matrix, Σ x xᵀ. It is additive: shards are merged by
    adding.

    C_{k-1,k} is the H of docs/method.md, "Priors", with the old vectors as prior factors:
    `evergram.gramian.estimator.Moment` holds the same pair of matrices, for embeddings that move
    while they are estimated.

    Args:
        old_dim, new_dim: D_{k-1} and D_k.
    Source: docs/method.md, "Closed forms".
    """

    def __init__(self, old_dim: int, new_dim: int) -> None:
        self.old_dim = old_dim
        self.new_dim = new_dim
        size = 1 + new_dim + old_dim
        # Valid on and above the diagonal of panels only. `_excess` is the rounding error of `_sum`;
        # without it the small spread of a long file would be lost beside its large means.
        self._sum = torch.zeros(size, size, dtype=torch.float64)
        self._excess = torch.zeros(size, size, dtype=torch.float64)

    def add(self, old: Tensor, new: Tensor) -> None:
        """Fold in a block of pairs, old [b, D_{k-1}] and new [b, D_k].

        Raises: ShapeError: they do not fit each other or the dims.
        """
        if old.shape != (len(new), self.old_dim) or new.shape != (len(old), self.new_dim):
            raise ShapeError(
                f"Old vectors are {list(old.shape)} and new ones {list(new.shape)}; they must be "
                f"[b, {self.old_dim}] and [b, {self.new_dim}] of the same b objects."
            )
        rows = torch.empty(len(new), len(self._sum), dtype=torch.float64)
        rows[:, 0] = 1
        rows[:, 1 : 1 + self.new_dim] = new.detach()
        rows[:, 1 + self.new_dim :] = old.detach()
        for start in range(0, len(self._sum), PANEL):
            panel = slice(start, start + PANEL)
            part = rows[:, panel].T @ rows[:, start:]
            _compensated(self._sum[panel, start:], self._excess[panel, start:], part)

    def merge(self, other: SecondMoments) -> None:
        """Add the pairs of another accumulator. Raises: ShapeError: it has other dims."""
        if (other.old_dim, other.new_dim) != (self.old_dim, self.new_dim):
            raise ShapeError(
                f"Moments of dims {other.old_dim} and {other.new_dim} cannot be merged into those "
                f"of dims {self.old_dim} and {self.new_dim}."
            )
        _compensated(self._sum, self._excess, other._sum - other._excess)

    def plus(self, *others: SecondMoments) -> SecondMoments:
        """Return the moments of these pairs and the others'."""
        total = SecondMoments(self.old_dim, self.new_dim)
        for each in (self, *others):
            total.merge(each)
        return total

    def summed(self, together: Collectives) -> SecondMoments:
        """Return the moments of the pairs of all processes, of which each has added some."""
        if together.size == 1:
            return self
        total = SecondMoments(self.old_dim, self.new_dim)
        total._sum = together.sum(self._sum - self._excess, "moments")
        return total

    @property
    def count(self) -> int:
        """The number of pairs."""
        return round(float(self._sum[0, 0]))

    @property
    def mean_old(self) -> Tensor:
        """float64 [D_{k-1}]."""
        return self._mean()[1 + self.new_dim :]

    @property
    def mean_new(self) -> Tensor:
        """float64 [D_k]."""
        return self._mean()[1 : 1 + self.new_dim]

    def second(self, *, centred: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return C_kk [D_k, D_k], C_{k-1,k} [D_{k-1}, D_k] and C_{k-1,k-1}, float64.

        Args:
            centred: take them about the means.
        Raises: DataError: there are no pairs.
        """
        mean = self._mean()
        both = self._symmetric() / self._sum[0, 0]
        if centred:
            both = both - mean[:, None] * mean
        new, old = slice(1, 1 + self.new_dim), slice(1 + self.new_dim, None)
        return both[new, new], both[old, new], both[old, old]

    def sigma(self, weight: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return E[δ δᵀ], float64 [D_{k-1}, D_{k-1}], of δ = W z_k + b − z_{k-1}.

        Args:
            weight: W [D_{k-1}, D_k].
            offset: b [D_{k-1}].
        """
        w = self._fitting(weight)
        new, cross, old = self.second(centred=True)
        both = w @ cross.T
        shift = self._shift(w, offset)
        return w @ new @ w.T - both - both.T + old + shift[:, None] * shift

    def error(
        self, weight: Tensor, offset: Tensor | None = None, metric: Tensor | None = None
    ) -> float:
        """Return E[δᵀ S δ] of δ as in `sigma`; with S = I it is the mean of ‖δ‖².

        Args:
            weight, offset: as of `sigma`.
            metric: S [D_{k-1}, D_{k-1}]; None is I.
        """
        if metric is not None:
            return max(float((self.sigma(weight, offset) * metric.double()).sum()), 0.0)
        # The trace of sigma takes one product of matrices instead of three.
        w = self._fitting(weight)
        new, cross, old = self.second(centred=True)
        shift = self._shift(w, offset)
        squared = ((w @ new) * w).sum() - 2 * (w * cross).sum() + old.trace() + shift @ shift
        # In this order NaN stays NaN.
        return max(float(squared), 0.0)

    def _fitting(self, weight: Tensor) -> Tensor:
        if weight.shape != (self.old_dim, self.new_dim):
            raise ShapeError(
                f"The matrix is {list(weight.shape)}; these moments need "
                f"[{self.old_dim}, {self.new_dim}]."
            )
        return weight.detach().double().cpu()

    def _shift(self, weight: Tensor, offset: Tensor | None) -> Tensor:
        """E[δ]."""
        shift = weight @ self.mean_new - self.mean_old
        return shift if offset is None else shift + offset.detach().double().cpu()

    @property
    def power(self) -> float:
        """E‖z_{k-1}‖², the divisor of relative errors."""
        return float(self.second()[2].trace())

    def _symmetric(self) -> Tensor:
        upper = self._sum.triu()
        return upper + upper.triu(1).T

    def _mean(self) -> Tensor:
        if self.count < 1:
            raise DataError("There are no pairs to take a mean of; add some first.")
        return self._sum[0] / self._sum[0, 0]


def _compensated(total: Tensor, excess: Tensor, part: Tensor) -> None:
    """Add `part` to `total` in place; `excess` carries the rounding error. Source: Kahan, 1965."""
    part = part - excess
    after = total + part
    excess.copy_((after - total) - part)
    total.copy_(after)


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
