"""Second moments of pairs (z_{k-1}, z_k), from which alignment is solved in closed form."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from evergram.atomic_files import replacing_path
from evergram.collectives import Collectives
from evergram.errors import DataError, ShapeError, reason_and_remedy

# Columns multiplied at once; blocks below the diagonal are never computed.
PANEL = 256


class SecondMoments:
    """Counts, sums and second moments of pairs of vectors, from one pass, in float64.

    With x = (1, z_k, z_{k-1}) they are one matrix, Σ x xᵀ. It is additive: shards and machines are
    merged by adding, and a record is removed by subtracting it, up to rounding.

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
        self._accumulate(old, new, 1.0)

    def remove(self, old: Tensor, new: Tensor) -> None:
        """Remove pairs that were added before.

        Raises: ShapeError: as of `add`. DataError: there are fewer pairs than these.
        """
        if len(new) > self.count:
            raise DataError(
                f"{len(new)} pairs are to be removed, and only {self.count} were ever added; "
                "remove what was added."
            )
        self._accumulate(old, new, -1.0)

    def merge(self, other: SecondMoments) -> None:
        """Add the pairs of another accumulator. Raises: ShapeError: it has other dims."""
        if (other.old_dim, other.new_dim) != (self.old_dim, self.new_dim):
            raise ShapeError(
                f"Moments of dims {other.old_dim} and {other.new_dim} cannot be merged into those "
                f"of dims {self.old_dim} and {self.new_dim}."
            )
        _compensated(self._sum, self._excess, other._sum - other._excess)

    def summed(self, together: Collectives) -> SecondMoments:
        """Return the moments of the pairs of all processes, of which each has added some."""
        if together.size == 1:
            return self
        total = SecondMoments(self.old_dim, self.new_dim)
        total._sum = together.sum(self._sum - self._excess, "moments")
        return total

    def swapped(self) -> SecondMoments:
        """Return the moments of the same pairs with old and new exchanged, for the forward map."""
        order = torch.cat(
            [
                torch.zeros(1, dtype=torch.int64),
                torch.arange(1 + self.new_dim, len(self._sum)),
                torch.arange(1, 1 + self.new_dim),
            ]
        )
        turned = SecondMoments(self.new_dim, self.old_dim)
        turned._sum = self._symmetric()[order][:, order]
        return turned

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

    def state_dict(self) -> dict[str, Tensor]:
        """Return the moments as tensors, for `from_state_dict` and for safetensors."""
        return {"sum": self._symmetric(), "dims": torch.tensor([self.old_dim, self.new_dim])}

    @classmethod
    def from_state_dict(cls, state: dict[str, Tensor]) -> SecondMoments:
        """Return the moments of a `state_dict`. Raises: DataError: it is not one."""
        try:
            moments = cls(*(int(d) for d in state["dims"]))
            if state["sum"].shape != moments._sum.shape:
                needed = list(moments._sum.shape)
                raise ShapeError(
                    f"its matrix is {list(state['sum'].shape)}, and {needed} is needed"
                )
            moments._sum = state["sum"].double().clone()
        except (KeyError, TypeError, ShapeError) as error:
            raise DataError(f"These are not second moments: {error}.") from error
        return moments

    def save(self, path: Path) -> None:
        """Write the moments as safetensors. Raises: DataError: the folder cannot be written."""
        try:
            with replacing_path(path) as part:
                save_file(self.state_dict(), part)
        except OSError as error:
            raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error

    @classmethod
    def load(cls, path: Path) -> SecondMoments:
        """Read what `save` wrote. Raises: DataError: the file is damaged or of another kind."""
        try:
            state = load_file(path)
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path} cannot be read as second moments: {error}.") from error
        return cls.from_state_dict(state)

    def _accumulate(self, old: Tensor, new: Tensor, sign: float) -> None:
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
            part = sign * (rows[:, panel].T @ rows[:, start:])
            _compensated(self._sum[panel, start:], self._excess[panel, start:], part)

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
