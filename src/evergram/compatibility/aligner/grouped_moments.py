"""Second moments of three groups of rows: fitted to, choosing the ridge, and held out."""

from __future__ import annotations

from torch import Tensor

from evergram.compatibility.row_groups import pair_groups, vector_hashes
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError

GROUPS = ("seen", "chosen", "held")


class GroupedMoments:
    """`SecondMoments` of each of `row_groups.Groups`.

    The new vector of a row alone decides its group, so the order of the rows and their division
    into blocks and machines do not matter, and parts are merged by adding.

    Args:
        old_dim, new_dim: D_{k-1} and D_k.
        share: of the rows that are held out.
    Attributes:
        zeros: how many old and how many new vectors are zero.
    """

    def __init__(self, old_dim: int, new_dim: int, share: float) -> None:
        self.share = share
        self.seen: SecondMoments
        self.chosen: SecondMoments
        self.held: SecondMoments
        self.seen, self.chosen, self.held = (SecondMoments(old_dim, new_dim) for _ in GROUPS)
        self.zeros: tuple[int, int] = (0, 0)

    @property
    def dims(self) -> tuple[int, int]:
        """D_{k-1} and D_k."""
        return self.held.old_dim, self.held.new_dim

    @property
    def rows(self) -> int:
        """The number of rows that were added."""
        return self.seen.count + self.chosen.count + self.held.count

    def add(self, old: Tensor, new: Tensor) -> None:
        """Fold in a block of pairs, float64 [b, D_{k-1}] and [b, D_k] on the CPU.

        Raises: ShapeError: they do not fit each other or the dims.
        """
        groups = pair_groups(vector_hashes(new), self.share)
        for name in GROUPS:
            mask: Tensor = getattr(groups, name)
            self._of(name).add(old[mask], new[mask])
        self.zeros = (
            self.zeros[0] + int((~old.any(1)).sum()),
            self.zeros[1] + int((~new.any(1)).sum()),
        )

    def merge(self, other: GroupedMoments) -> None:
        """Add the rows of another. Raises: ShapeError: its dims differ."""
        for name in GROUPS:
            self._of(name).merge(other._of(name))
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
        return {
            f"{name}.{key}": tensor
            for name in GROUPS
            for key, tensor in self._of(name).state_dict().items()
        }

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

    def _sum(self, *names: str) -> SecondMoments:
        total = SecondMoments(*self.dims)
        for name in names:
            total.merge(self._of(name))
        return total

    def _of(self, name: str) -> SecondMoments:
        moments: SecondMoments = getattr(self, name)
        return moments
