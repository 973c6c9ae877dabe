"""An aligner's settings, moments of three groups of rows, map, and report on the rows held out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.chance import beside_chance
from evergram.compatibility.closed_forms import (
    KINDS,
    ClosedForm,
    SecondMoments,
    degenerate_side,
    fit_closed_form,
    pairs_needed,
)
from evergram.compatibility.kinds import TRANSFORMS
from evergram.compatibility.row_groups import pair_groups, vector_hashes
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError

# Default rank of low_rank, if the dims allow it.
RANK = 32


@dataclass(frozen=True)
class MapSettings:
    """The settings of every map that is fitted in closed form, checked.

    Args:
        transform: one of `closed_forms.KINDS`.
        rank: of low_rank, and of it alone; None for 32, or the smaller dim if that is less.
        scaled: True lets an orthogonal map, and it alone, stretch by one factor.
        held_out: share of the rows that measure the map and are never fitted to.
    Raises: DataError: a value is not allowed, or the transform does not use it.
    """

    transform: str = "linear"
    rank: int | None = None
    scaled: bool = False
    held_out: float = 0.1

    def __post_init__(self) -> None:
        if self.transform not in KINDS:
            is_trained = self.transform in TRANSFORMS
            trained = " (it is trained instead, by BackwardAlignment)" if is_trained else ""
            raise DataError(
                f"The transform {self.transform!r} has no closed form{trained}; give one of "
                f"{', '.join(KINDS)}{did_you_mean(self.transform, KINDS)}."
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


@dataclass(frozen=True)
class AlignerSettings(MapSettings):
    """The arguments of `Aligner`, checked.

    Args:
        ridge: ρ in the unit of E[z zᵀ], or "auto": chosen on rows that were not fitted to.
    """

    # Further keys come from a later Evergram: refuse them rather than ignore them.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    ridge: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ridge != "auto":
            if not _is_number(self.ridge) or not 0 <= self.ridge < math.inf:
                raise DataError(f'ridge is {self.ridge!r}; it must be "auto" or a number ≥ 0.')
            if not self.has_ridge:
                raise DataError(
                    "A map of kind orthogonal has no ridge; leave it out or choose another kind."
                )

    @property
    def has_ridge(self) -> bool:
        """True if the kind is solved with a ridge; an orthogonal map cannot shrink."""
        return self.transform != "orthogonal"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Hashes of held-out vectors that are kept, the smallest: 1 MiB. So many different vectors are
# counted one by one, and of more the number is estimated.
KEPT_HASHES = 1 << 17


class GroupedMoments:
    """`SecondMoments` of each of `row_groups.Groups`.

    The new vector of a row alone decides its group, so the order of the rows and their division
    into blocks do not matter.

    Args:
        old_dim, new_dim: D_{k-1} and D_k.
        share: of the rows that are held out.
    Attributes:
        zeros: how many old and how many new vectors are zero.
        hashes: the `KEPT_HASHES` smallest hashes of the held-out new vectors, int64, ascending.
    """

    def __init__(self, old_dim: int, new_dim: int, share: float) -> None:
        self.share = share
        self.seen: SecondMoments
        self.chosen: SecondMoments
        self.held: SecondMoments
        self.seen, self.chosen, self.held = (SecondMoments(old_dim, new_dim) for _ in range(3))
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
        self.seen.add(old[groups.seen], new[groups.seen])
        self.chosen.add(old[groups.chosen], new[groups.chosen])
        self.held.add(old[groups.held], new[groups.held])
        different: Tensor = torch.unique(torch.cat([self.hashes, hashes[groups.held]]))
        self.hashes = different[:KEPT_HASHES].clone()
        self.zeros = (
            self.zeros[0] + int((~old.any(1)).sum()),
            self.zeros[1] + int((~new.any(1)).sum()),
        )

    @property
    def fitted(self) -> SecondMoments:
        """Moments of all rows but the held-out ones."""
        return self.seen.plus(self.chosen)

    @property
    def whole(self) -> SecondMoments:
        """Moments of all rows."""
        return self.seen.plus(self.chosen, self.held)


@dataclass(frozen=True)
class AlignerReport:
    """The result of `Aligner.report`; a figure is None if `reason` says why it was not measured.

    Args:
        transform: the kind of the map.
        old_dim, new_dim: D_old and D_new.
        rows: the number of all rows; the map is fitted to `fitted_rows` of them and measured on
            the other `held_out_rows`.
        rows_needed: the rows that a map of this kind should be fitted to: three for each free
            number of a coordinate. With fewer, look twice at the error.
        ridge: ρ, as set or chosen; 0 if the kind has none.
        relative_error: √(mean ‖error‖² / mean ‖old‖²).
        r2: 1 − mean ‖error‖² / mean ‖old − mean of old‖²: 1 is perfect, and the mean has 0.
        share_of_chance: the error over that of the same map with the rows mixed up.
        deviations: by how many standard deviations it is below that.
        better_than_chance: True if both pass the limits of `compatibility.chance`. Rows of equal
            new vectors count once.
    """

    # Further keys come from a later Evergram: refuse them rather than ignore them.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    transform: str
    old_dim: int
    new_dim: int
    rows: int
    fitted_rows: int
    held_out_rows: int
    rows_needed: int
    ridge: float
    relative_error: float | None
    r2: float | None
    share_of_chance: float | None
    deviations: float | None
    better_than_chance: bool | None
    reason: str | None


def measure(
    moments: GroupedMoments, fitted: ClosedForm, transform: str, rank: int
) -> AlignerReport:
    """Measure a map, of the kind and rank of the settings, on the held-out rows."""
    held, objects = moments.held, moments.held_objects
    old_dim, new_dim = moments.dims
    error = r2 = share = deviations = better = reason = None
    if objects < LEAST_OBJECTS:
        # A row that is there again measures nothing more.
        different = f", with {objects} different new vectors" if objects < held.count else ""
        reason = (
            f"{held.count} of {moments.rows} rows are held out{different}, and {LEAST_OBJECTS} are "
            f"needed to measure the error; give more {'different ' if different else ''}rows or "
            "raise held_out"
        )
    else:
        squared = held.error(fitted.weight, fitted.offset)
        spread = float(held.second(centred=True)[2].trace())
        chance = beside_chance(held, fitted.weight, fitted.offset, objects)
        if not (spread > 0 and math.isfinite(chance.ratio)):
            reason = "the old vectors of all held-out rows are the same"
        else:
            error, r2 = math.sqrt(squared / held.power), 1 - squared / spread
            share, deviations, better = chance.ratio, chance.deviations, chance.is_beaten
    return AlignerReport(
        transform=transform,
        old_dim=old_dim,
        new_dim=new_dim,
        rows=moments.rows,
        fitted_rows=moments.rows - held.count,
        held_out_rows=held.count,
        rows_needed=pairs_needed(transform, old_dim, new_dim, rank),
        ridge=fitted.ridge,
        relative_error=error,
        r2=r2,
        share_of_chance=share,
        deviations=deviations,
        better_than_chance=better,
        reason=reason,
    )


@dataclass(frozen=True)
class Solution:
    """A fitted map, its report, and the error of its transform; None if no row is held out."""

    fitted: ClosedForm
    report: AlignerReport
    error: StepError | None


def solve(moments: GroupedMoments, settings: AlignerSettings) -> Solution:
    """Fit the map to all rows except the held-out ones, and measure it on those.

    Raises: DataError: there are too few rows, or the vectors of one side cannot be aligned.
    """
    rank = settings.rank_of(*moments.dims)
    rows, seen, chosen = moments.rows, moments.seen.count, moments.chosen.count
    # Nothing is published here, and zeros change no map; but of few other vectors none is fitted.
    degenerate = degenerate_side(moments.whole, moments.zeros, 0.5) if rows > 1 else None
    if degenerate is not None:
        side, problem = degenerate
        raise DataError(
            f"The {side} vectors cannot be aligned: {problem}; look at how they were made."
        )
    if seen + chosen < 2:
        lower = ", or a lower held_out" if moments.held.count else ""
        raise DataError(
            f"Of {rows} rows {moments.held.count} are held out to measure on, which leaves "
            f"{seen + chosen} to fit to; give more rows{lower}."
        )
    choosing = settings.has_ridge and settings.ridge == "auto"
    if choosing and not (seen and chosen):
        raise DataError(
            f"Of {rows} rows {seen} would be fitted to and {chosen} would choose the ridge; give "
            "more rows, or a number as ridge."
        )
    fitted = fit_closed_form(
        settings.transform,
        moments.seen if choosing else moments.fitted,
        moments.chosen if choosing else None,
        rank=rank,
        scaled=settings.scaled,
        rho=0.0 if settings.ridge == "auto" else float(settings.ridge),
    )
    affine, held, error = fitted.transform.affine(), moments.held, None
    if held.count and affine is not None:
        error = StepError(held.sigma(*affine), moments.held_objects, held.power)
    return Solution(fitted, measure(moments, fitted, settings.transform, rank), error)
