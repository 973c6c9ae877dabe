"""How good an aligner's map is, on rows that it was not fitted to."""

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
    """What `Aligner.report` says. What could not be measured is None, and `reason` says why.

    Args:
        kind: of the map.
        old_dim, new_dim: D_old and D_new.
        rows: all that were given; `fitted_rows` of them the map is fitted to, and on
            `held_out_rows` of them, on no others, it is measured.
        rows_needed: how many a map of this kind should be fitted to, three for each number that a
            coordinate is made of. With fewer, look twice at the error.
        ridge: ρ, as it was asked for or chosen; 0 where the kind has none.
        relative_error: √(mean ‖error‖² / mean ‖old‖²).
        r2: 1 − mean ‖error‖² / mean ‖old − mean of old‖²: 1 is perfect, and the mean has 0.
        share_of_chance: the error over that of the same map with the rows mixed up.
        deviations: by how many standard deviations it is below that.
        better_than_chance: whether that is far enough, as `compatibility.chance` has it.
    """

    # A file that says more than this is of a later Evergram, and is not read as if it said less.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: str
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


def measure(moments: GroupedMoments, fitted: ClosedForm, kind: str, rank: int) -> AlignerReport:
    """Measure a map on the held-out rows.

    Args:
        kind: as it was asked for; a scaled orthogonal map calls itself linear.
        rank: of low_rank.
    """
    held = moments.held
    old_dim, new_dim = moments.dims
    error = r2 = share = deviations = better = reason = None
    if held.count < LEAST_OBJECTS:
        reason = (
            f"{held.count} of {moments.rows} rows are held out, and {LEAST_OBJECTS} are needed to "
            "measure the error; give more rows or raise held_out"
        )
    else:
        squared = held.error(fitted.weight, fitted.offset)
        spread = float(held.second(centred=True)[2].trace())
        chance = beside_chance(held, fitted.weight, fitted.offset)
        if not (spread > 0 and math.isfinite(chance.ratio)):
            reason = "the old vectors of all held-out rows are the same"
        else:
            error, r2 = math.sqrt(squared / held.power), 1 - squared / spread
            share, deviations, better = chance.ratio, chance.deviations, chance.is_beaten
    return AlignerReport(
        kind=kind,
        old_dim=old_dim,
        new_dim=new_dim,
        rows=moments.rows,
        fitted_rows=moments.rows - held.count,
        held_out_rows=held.count,
        rows_needed=pairs_needed(kind, old_dim, new_dim, rank),
        ridge=fitted.ridge,
        relative_error=error,
        r2=r2,
        share_of_chance=share,
        deviations=deviations,
        better_than_chance=better,
        reason=reason,
    )
