"""Second moments of three groups of rows: fitted to, choosing the ridge, and held out."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.compatibility.row_groups import pair_groups, vector_hashes
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError

GROUPS = ("seen", "chosen", "held")
# Hashes of held-out vectors that are kept, the smallest: 1 MiB. So many different vectors are
# counted one by one, and of more the number is estimated.
KEPT_HASHES = 1 << 17


class GroupedMoments:
    """`SecondMoments` of each of `row_groups.Groups`.

    The new vector of a row alone decides its group, so the order of the rows and their division
    into blocks and machines do not matter, and parts are merged by adding.

    Args:
        old_dim, new_dim: D_{k-1} and D_k.
        share: of the rows that are held out.
    Attributes:
        zeros: how many old and how many new vectors are zero.
        hashes: the `KEPT_HASHES` smallest hashes of the held-out new vectors, int64, ascending,
            each once.
    """

    def __init__(self, old_dim: int, new_dim: int, share: float) -> None:
        self.share = share
        self.seen: SecondMoments
        self.chosen: SecondMoments
        self.held: SecondMoments
        self.seen, self.chosen, self.held = (SecondMoments(old_dim, new_dim) for _ in GROUPS)
        self.zeros: tuple[int, int] = (0, 0)
        self.hashes: Tensor = torch.empty(0, dtype=torch.int64)

    @property
    def dims(self) -> tuple[int, int]:
        """D_{k-1} and D_k."""
        return self.held.old_dim, self.held.new_dim

    @property
    def rows(self) -> int:
        """The number of rows that were added."""
        return self.seen.count + self.chosen.count + self.held.count

    @property
    def held_objects(self) -> int:
        """How many different new vectors the held-out rows have.

        Source: of more than are kept, Bar-Yossef et al., "Counting distinct elements in a data
            stream", 2002: the smallest hashes lie the closer to 0, the more there are.
        """
        if len(self.hashes) < KEPT_HASHES:
            return len(self.hashes)
        estimate = (KEPT_HASHES - 1) * self.share * 2**32 / float(self.hashes[-1] + 1)
        return min(self.held.count, round(estimate))

    def add(self, old: Tensor, new: Tensor) -> None:
        """Fold in a block of pairs, float64 [b, D_{k-1}] and [b, D_k] on the CPU.

        Raises: ShapeError: they do not fit each other or the dims.
        """
        hashes = vector_hashes(new)
        groups = pair_groups(hashes, self.share)
        for name in GROUPS:
            mask: Tensor = getattr(groups, name)
            self._of(name).add(old[mask], new[mask])
        self._keep(hashes[groups.held])
        self.zeros = (
            self.zeros[0] + int((~old.any(1)).sum()),
            self.zeros[1] + int((~new.any(1)).sum()),
        )

    def merge(self, other: GroupedMoments) -> None:
        """Add the rows of another. Raises: ShapeError: its dims differ."""
        for name in GROUPS:
            self._of(name).merge(other._of(name))
        self._keep(other.hashes)
        self.zeros = (self.zeros[0] + other.zeros[0], self.zeros[1] + other.zeros[1])

    @property
    def fitted(self) -> SecondMoments:
        """Moments of all rows but the held-out ones."""
        return self._sum("seen", "chosen")

    @property
    def whole(self) -> SecondMoments:
        """Moments of all rows."""
        return self._sum(*GROUPS)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the moments as tensors, for `load_state_dict` and for safetensors."""
        state = {
            f"{name}.{key}": tensor
            for name in GROUPS
            for key, tensor in self._of(name).state_dict().items()
        }
        return {**state, "held.hashes": self.hashes}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a `state_dict`. Raises: DataError: it is not one, or has other dims."""
        for name in GROUPS:
            part = {k.split(".")[1]: v for k, v in state.items() if k.startswith(f"{name}.")}
            moments = SecondMoments.from_state_dict(part)
            if (moments.old_dim, moments.new_dim) != self.dims:
                raise DataError(
                    f"These moments have dims {moments.old_dim} and {moments.new_dim}; "
                    f"{self.dims[0]} and {self.dims[1]} are needed."
                )
            setattr(self, name, moments)
        self.hashes = state["held.hashes"]

    def _keep(self, hashes: Tensor) -> None:
        """Add hashes of held-out vectors."""
        different: Tensor = torch.unique(torch.cat([self.hashes, hashes]))
        self.hashes = different[:KEPT_HASHES].clone()

    def _sum(self, *names: str) -> SecondMoments:
        total = SecondMoments(*self.dims)
        for name in names:
            total.merge(self._of(name))
        return total

    def _of(self, name: str) -> SecondMoments:
        moments: SecondMoments = getattr(self, name)
        return moments
