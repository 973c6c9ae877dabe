"""Measure an aligner's map on rows that it was not fitted to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from evergram.compatibility.aligner.grouped_moments import GroupedMoments
from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.chance import beside_chance
from evergram.compatibility.closed_form_fit import ClosedForm, pairs_needed


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
    """Measure a map on the held-out rows.

    Args:
        transform: of the settings; that of a scaled orthogonal map is built as linear.
        rank: of low_rank.
    """
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
