"""Settings of an aligner: the transform, its ridge, and the share of rows that measure it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from evergram.compatibility.closed_form_fit import KINDS
from evergram.compatibility.kinds import TRANSFORMS
from evergram.errors import DataError

# Default rank of low_rank, if the dims allow it.
RANK = 32


@dataclass(frozen=True)
class AlignerSettings:
    """The arguments of `Aligner`, checked.

    Args:
        transform: one of `closed_form_fit.KINDS`.
        ridge: ρ in the unit of E[z zᵀ], or "auto": chosen on rows that were not fitted to.
        rank: of low_rank, and of it alone; None for 32, or the smaller dim if that is less.
        scaled: True lets an orthogonal map, and it alone, stretch by one factor.
        held_out: share of the rows that measure the map and are never fitted to.
    Raises: DataError: a value is not allowed, or the transform does not use it.
    """

    # Further keys come from a later Evergram: refuse them rather than ignore them.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    transform: str = "linear"
    ridge: float | Literal["auto"] = "auto"
    rank: int | None = None
    scaled: bool = False
    held_out: float = 0.1

    def __post_init__(self) -> None:
        if self.transform not in KINDS:
            kinds = ", ".join(KINDS)
            is_trained = self.transform in TRANSFORMS
            trained = " (it is trained instead, by BackwardAlignment)" if is_trained else ""
            raise DataError(
                f"The transform {self.transform!r} has no closed form{trained}; an aligner's is "
                f"one of {kinds}."
            )
        if self.ridge != "auto":
            if not _is_number(self.ridge) or not 0 <= self.ridge < math.inf:
                raise DataError(f'ridge is {self.ridge!r}; it must be "auto" or a number ≥ 0.')
            if not self.has_ridge:
                raise DataError(
                    "A map of kind orthogonal has no ridge; leave it out or choose another kind."
                )
        if not _is_number(self.held_out) or not 0 <= self.held_out < 1:
            raise DataError(f"held_out is {self.held_out!r}; it must be at least 0 and below 1.")
        if self.rank is not None:
            if self.transform != "low_rank":
                raise DataError(f"rank is of low_rank, not of {self.transform}; leave it out.")
            if not _is_number(self.rank) or self.rank != int(self.rank) or self.rank < 1:
                raise DataError(f"rank is {self.rank!r}; it must be a whole number ≥ 1.")
        if self.scaled and self.transform != "orthogonal":
            raise DataError(f"scaled is of orthogonal, not of {self.transform}; leave it out.")

    @property
    def has_ridge(self) -> bool:
        """True if the kind is solved with a ridge; an orthogonal map cannot shrink."""
        return self.transform != "orthogonal"

    def rank_of(self, old_dim: int, new_dim: int) -> int:
        """Return the rank of a map of low rank between these dims.

        Raises: DataError: the rank of the settings is above the smaller of them.
        """
        most = min(old_dim, new_dim)
        if self.rank is not None and self.rank > most:
            raise DataError(
                f"rank is {self.rank}; between {new_dim} and {old_dim} dims it is at most {most}."
            )
        return min(RANK, most) if self.rank is None else self.rank


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
