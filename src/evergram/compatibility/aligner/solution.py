"""An aligner's settings, the moments of its rows, its map, and the report on held-out rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.chance import compared_with_chance
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

RANK = 32  # default rank of low_rank, limited by the dims


@dataclass(frozen=True)
class MapSettings:
    """The validated settings of a map fitted in closed form.

    Raises: DataError: a value is not allowed, or the transform does not use it.
    """

    transform: str = "linear"  # one of `closed_forms.KINDS`
    rank: int | None = None  # for low_rank only; None for 32, or the smaller dim if that is less
    scaled: bool = False  # for orthogonal only; True also fits a scale factor
    held_out: float = 0.1  # share of the rows that measure the error and are never fitted

    def __post_init__(self) -> None:
        if self.transform not in KINDS:
            is_trained = self.transform in TRANSFORMS
            trained = " (train it with BackwardAlignment instead)" if is_trained else ""
            raise DataError(
                f"The transform {self.transform!r} has no closed form{trained}; give one of "
                f"{', '.join(KINDS)}{did_you_mean(self.transform, KINDS)}."
            )
        if not _is_number(self.held_out) or not 0 <= self.held_out < 1:
            raise DataError(f"held_out is {self.held_out!r}; it must be at least 0 and below 1.")
        if self.rank is not None:
            if self.transform != "low_rank":
                raise DataError(f"rank is for low_rank, not {self.transform}; leave it out.")
            if not _is_number(self.rank) or self.rank != int(self.rank) or self.rank < 1:
                raise DataError(f"rank is {self.rank!r}; it must be an integer ≥ 1.")
        if self.scaled and self.transform != "orthogonal":
            raise DataError(f"scaled is for orthogonal, not {self.transform}; leave it out.")

    def rank_of(self, old_dim: int, new_dim: int) -> int:
        """Return the rank of a low_rank map between these dims. Raises: DataError: the configured
        rank is above the smaller dim."""
        most = min(old_dim, new_dim)
        if self.rank is not None and self.rank > most:
            raise DataError(
                f"rank is {self.rank}; from {new_dim} to {old_dim} dims it must be at most {most}."
            )
        return min(RANK, most) if self.rank is None else self.rank


@dataclass(frozen=True)
class AlignerSettings(MapSettings):
    """The validated arguments of `Aligner`.

    Args:
        ridge: ρ in the unit of E[z zᵀ], or "auto" to choose it on rows that are not fitted.
    """

    # Reject unknown keys: they come from a later Evergram.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    ridge: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ridge != "auto":
            if not _is_number(self.ridge) or not 0 <= self.ridge < math.inf:
                raise DataError(f'ridge is {self.ridge!r}; it must be "auto" or a number ≥ 0.')
            if not self.has_ridge:
                raise DataError(
                    "An orthogonal map has no ridge; leave it out or choose another kind."
                )

    @property
    def has_ridge(self) -> bool:
        """True if the kind uses a ridge; an orthogonal map cannot be shrunk."""
        return self.transform != "orthogonal"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# The smallest hashes of held-out vectors, 1 MiB of them, are kept. Up to this number, distinct
# vectors are counted exactly; above it, the count is estimated.
KEPT_HASHES = 1 << 17


class GroupedMoments:
    """`SecondMoments` of each group of `row_groups.Groups`.

    The group of a row depends only on its new vector, not on the order of rows or on the blocks.

    Args:
        old_dim, new_dim: D_{k-1} and D_k.
        share: share of the rows to hold out.
    Attributes:
        zeros: numbers of zero old and zero new vectors.
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
        """Number of rows added so far."""
        return self.seen.count + self.chosen.count + self.held.count

    @property
    def held_objects(self) -> int:
        """Number of distinct new vectors among the held-out rows. Source: the estimate for more
        than `KEPT_HASHES` vectors is Bar-Yossef et al., "Counting distinct elements in a data
        stream", 2002."""
        if len(self.hashes) < KEPT_HASHES:
            return len(self.hashes)
        estimate = (KEPT_HASHES - 1) * self.share * 2**32 / float(self.hashes[-1] + 1)
        return min(self.held.count, round(estimate))

    def add(self, old: Tensor, new: Tensor) -> None:
        """Add a block of pairs, float64 [b, D_{k-1}] and [b, D_k] on the CPU. Raises: ShapeError:
        the numbers of rows differ, or a dim is wrong."""
        hashes = vector_hashes(new)
        groups = pair_groups(hashes, self.share)
        self.seen.add(old[groups.seen], new[groups.seen])
        self.chosen.add(old[groups.chosen], new[groups.chosen])
        self.held.add(old[groups.held], new[groups.held])
        distinct: Tensor = torch.unique(torch.cat([self.hashes, hashes[groups.held]]))
        self.hashes = distinct[:KEPT_HASHES].clone()
        self.zeros = (
            self.zeros[0] + int((~old.any(1)).sum()),
            self.zeros[1] + int((~new.any(1)).sum()),
        )

    @property
    def fitted(self) -> SecondMoments:
        """Moments of all rows except the held-out ones."""
        return self.seen.plus(self.chosen)

    @property
    def whole(self) -> SecondMoments:
        """Moments of all rows."""
        return self.seen.plus(self.chosen, self.held)


@dataclass(frozen=True)
class AlignerReport:
    """The result of `Aligner.report`. A figure that was not measured is None, see `reason`.

    Args:
        rows: number of all rows; the map is fitted to `fitted_rows` of them and measured on the
            other `held_out_rows`.
        rows_needed: recommended number of fitted rows: three per free parameter of a coordinate.
            With fewer, treat the error with caution.
        ridge: ρ, as set or chosen; 0 if the kind has none.
        relative_error: √(mean ‖error‖² / mean ‖old‖²).
        r2: 1 − mean ‖error‖² / mean ‖old − mean old‖²; 1 is perfect, predicting the mean gives 0.
        share_of_chance: the error divided by the error of the same map with the rows shuffled.
        deviations: the difference of these two errors, in standard deviations.
        better_than_chance: True if both pass the limits of `compatibility.chance`. Rows with equal
            new vectors count once.
    """

    # Reject unknown keys: they come from a later Evergram.
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
    """Measure a map of this kind and rank on the held-out rows."""
    held, objects = moments.held, moments.held_objects
    old_dim, new_dim = moments.dims
    error = r2 = share = deviations = better = reason = None
    if objects < LEAST_OBJECTS:
        # Repeated rows add no information.
        distinct = f", with {objects} distinct new vectors" if objects < held.count else ""
        reason = (
            f"{held.count} of {moments.rows} rows are held out{distinct}, but {LEAST_OBJECTS} are "
            f"needed to measure the error; give more {'distinct ' if distinct else ''}rows or "
            "raise held_out"
        )
    else:
        squared = held.error(fitted.weight, fitted.offset)
        spread = float(held.second(centred=True)[2].trace())
        chance = compared_with_chance(held, fitted.weight, fitted.offset, objects)
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
    """A fitted map, its report, and its transform's error, which is None if no row is held out."""

    fitted: ClosedForm
    report: AlignerReport
    error: StepError | None


def solve(moments: GroupedMoments, settings: AlignerSettings) -> Solution:
    """Fit the map to all rows except the held-out ones, and measure it on the held-out ones.
    Raises: DataError: there are too few rows, or the vectors of one side cannot be aligned."""
    rank = settings.rank_of(*moments.dims)
    rows, seen, chosen = moments.rows, moments.seen.count, moments.chosen.count
    # Zero vectors do not change the map, so up to half of the rows may be zero.
    degenerate = degenerate_side(moments.whole, moments.zeros, 0.5) if rows > 1 else None
    if degenerate is not None:
        side, problem = degenerate
        raise DataError(
            f"The {side} vectors cannot be aligned: {problem}; check how they were computed."
        )
    if seen + chosen < 2:
        lower = ", or a lower held_out" if moments.held.count else ""
        raise DataError(
            f"Of {rows} rows, {moments.held.count} are held out to measure the error, which leaves "
            f"{seen + chosen} to fit; give more rows{lower}."
        )
    choosing = settings.has_ridge and settings.ridge == "auto"
    if choosing and not (seen and chosen):
        raise DataError(
            f"Of {rows} rows, {seen} are left to fit and {chosen} to choose the ridge; give more "
            "rows, or set the ridge to a number."
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
