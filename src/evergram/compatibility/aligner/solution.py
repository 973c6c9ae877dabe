"""Fit an aligner's map to grouped moments, and measure it."""

from __future__ import annotations

from dataclasses import dataclass

from evergram.compatibility.aligner.grouped_moments import GroupedMoments
from evergram.compatibility.aligner.report import AlignerReport, measure
from evergram.compatibility.aligner.settings import AlignerSettings
from evergram.compatibility.closed_form_fit import ClosedForm, fit_closed_form
from evergram.compatibility.degenerate import degenerate_side
from evergram.errors import DataError


@dataclass(frozen=True)
class Solution:
    """A fitted map and its report."""

    fitted: ClosedForm
    report: AlignerReport


def solve(moments: GroupedMoments, settings: AlignerSettings) -> Solution:
    """Fit the map to all rows except the held-out ones, and measure it on those.

    Raises: DataError: there are too few rows, or the vectors of one side are zero, all the same, or
        all on one line.
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
    return Solution(fitted, measure(moments, fitted, settings.transform, rank))
