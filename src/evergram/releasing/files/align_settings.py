"""The settings of an alignment of two files."""

from __future__ import annotations

from dataclasses import dataclass

from evergram.compatibility.closed_form_fit import KINDS
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError

# Of low_rank, if no rank is set.
RANK = 32


@dataclass(frozen=True)
class AlignSettings:
    """The kind of a transform between two files, and the objects it is measured on.

    Args:
        transform: linear, affine, orthogonal or low_rank.
        rank: of low_rank, and of it alone; 32 where it is absent.
        scaled: whether an orthogonal map, and it alone, may stretch.
        held_out: share of the common objects, by a hash of their ids, that is measured on and never
            fitted to.
        seed: draws the catalogue in which neighbours are looked up.
        allow_small_overlap: go on with fewer objects in common than the transform needs, or than
            its error can be measured on.
    """

    transform: str = "linear"
    rank: int | None = None
    scaled: bool = False
    held_out: float = 0.1
    seed: int = 0
    allow_small_overlap: bool = False

    def __post_init__(self) -> None:
        if self.transform not in KINDS:
            raise DataError(
                f"The transform {self.transform!r} cannot be fitted to files; "
                f"{', '.join(KINDS)} can{did_you_mean(self.transform, KINDS)}."
            )
        if not 0 < self.held_out < 1:
            raise DataError(
                f"held_out (--held-out) is {self.held_out}; it is a share between 0 and 1."
            )
        if self.rank is not None and self.rank < 1:
            raise DataError(f"rank is {self.rank}; it is at least 1.")
        if self.rank is not None and self.transform != "low_rank":
            raise DataError(
                f"rank is of the transform low_rank, not of {self.transform}; leave it out."
            )
        if self.scaled and self.transform != "orthogonal":
            raise DataError(
                f"scaled is of the transform orthogonal, not of {self.transform}; leave it out."
            )

    def rank_of(self, old_dim: int, new_dim: int) -> int:
        """Return the rank of a low-rank map between these dims."""
        return min(self.rank or RANK, old_dim, new_dim)
