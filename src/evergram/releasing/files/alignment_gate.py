"""Refuse an alignment of vectors without content, or one no better than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.chance import LEAST_DEVIATIONS, MOST_OF_CHANCE, Chance
from evergram.compatibility.degenerate import degenerate_side
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError, DegradationError

# The share of the mean square that is the mean's, from which the mean is "far from zero".
FAR = 0.5


def refuse_degenerate(old: Path, new: Path, moments: SecondMoments, zeros: tuple[int, int]) -> None:
    """Raises: DataError: the vectors of one of the files cannot be aligned; see `vectors_problem`.

    Args:
        moments: of all pairs.
        zeros: how many vectors of the old and of the new file are zero.
    """
    degenerate = degenerate_side(moments, zeros)
    if degenerate is not None:
        side, problem = degenerate
        raise DataError(
            f"{old if side == 'old' else new} has no vectors that could be aligned: of the "
            f"{moments.count} objects in common, {problem}; look at how it was made."
        )


def refuse_error(
    error: float,
    chance: Chance,
    held: int,
    limit: float | None,
    names: tuple[Path, Path],
    *,
    far: Sequence[str] = (),
) -> None:
    """Raises: DegradationError: the error on held-out objects is past the limit, no better than
    chance, or was measured on too few. DataError: the limit is no number.

    Args:
        error: relative.
        held: on how many objects it was measured.
        limit: of the relative error, beside `chance`, which holds for every limit but infinity.
        names: of the old and of the new file.
        far: those of them, as text, whose mean is far from zero, where the map has no offset.
    """
    if limit is not None and not limit >= 0:
        raise DataError(f"max_error is {limit}; it is a number such as 0.5, or inf for no limit.")
    if limit is not None and math.isinf(limit):
        return
    start = "The new version was not published: "
    other = "another limit is set by --max-error, and none by --max-error inf"
    if held < LEAST_OBJECTS or math.isnan(error):
        raise DegradationError(
            f"{start}its error would be measured on {held} objects, and {LEAST_OBJECTS} are needed "
            f"to hold it to a limit; raise --held-out or give more objects in common ({other})."
        )
    if limit is not None and error > limit:
        raise DegradationError(
            f"{start}on {held} held-out objects the relative error is {error:.4g}, past the limit "
            f"of {limit:g}; {other}."
        )
    if not chance.is_beaten:
        raise DegradationError(
            f"{start}{names[1]} says next to nothing of {names[0]}: on {held} held-out objects "
            f"the relative error is {error:.4g}, {chance.ratio:.0%} of what it is with the objects "
            f"mixed up and {chance.deviations:.1f} standard deviations below that; at most "
            f"{MOST_OF_CHANCE:.0%} and at least {LEAST_DEVIATIONS:g} deviations are needed. "
            f"{_advice(far)} (--max-error inf publishes it all the same)."
        )


def far_means(old: Path, new: Path, moments: SecondMoments, *, has_offset: bool) -> list[str]:
    """Return the files, as text, whose mean vector is far from zero, which a map without an offset
    cannot follow; none if it has one."""
    if has_offset:
        return []
    squares = moments.second()
    sides = ((old, squares[2], moments.mean_old), (new, squares[0], moments.mean_new))
    return [
        str(path)
        for path, square, mean in sides
        if float(mean.double().square().sum()) > FAR * float(square.trace())
    ]


def _advice(far: Sequence[str]) -> str:
    if far:
        return (
            f"The mean vector of {' and of '.join(far)} is far from zero: try --transform affine, "
            "and see whether the same id is the same object in both files"
        )
    return (
        "See whether the same id is the same object in both files, and whether some vectors are "
        "much longer than others"
    )
