"""Refuse an alignment of vectors without content, or one no better than chance."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError, DegradationError
from evergram.evaluation.chance import Chance

# Where no limit is given, the error may be at most this share of what the same map errs by with the
# objects mixed up, and must be below that by so many standard deviations. Constant vectors have 1
# and 0. Random vectors of few objects come below the share by luck, but not by five deviations: of
# 43,000 fits to 20 to 60 held-out objects of 1 to 16 dims, none did.
MOST_OF_CHANCE = 0.95
LEAST_DEVIATIONS = 5.0
# A spread below this share of the mean square is rounding.
ROUNDING = 1e-10


def refuse_degenerate(old: Path, new: Path, moments: SecondMoments, zeros: tuple[int, int]) -> None:
    """Raises: DataError: the vectors of one of the files are zero, constant or all on one line.

    Args:
        moments: of all pairs.
        zeros: how many vectors of the old and of the new file are zero.
    """
    both = moments.second(), moments.second(centred=True)
    for path, place, zero in ((old, 2, zeros[0]), (new, 0, zeros[1])):
        square, spread = (moment[place] for moment in both)
        power = float(square.trace())
        problem = None
        if 2 * zero > moments.count:
            problem = f"{zero} of {moments.count} are zero"
        elif float(spread.trace()) <= ROUNDING * power:
            problem = "all of them are the same"
        elif len(spread) > 1 and _is_line(spread):
            problem = "all of them lie on one line"
        if problem is not None:
            raise DataError(
                f"{path} has no vectors that could be aligned: of the objects in common, "
                f"{problem}; look at how it was made."
            )


def refuse_error(
    error: float, chance: Chance, held: int, limit: float | None, names: tuple[Path, Path]
) -> None:
    """Raises: DegradationError: the error on held-out objects is past the limit, no better than
    chance, or was measured on too few. DataError: the limit is no number.

    Args:
        error: relative.
        held: on how many objects it was measured.
        limit: of the relative error, infinite for none; None for `MOST_OF_CHANCE`.
        names: of the old and of the new file.
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
    if limit is not None:
        if error > limit:
            raise DegradationError(
                f"{start}on {held} held-out objects the relative error is {error:.4g}, past the "
                f"limit of {limit:g}; {other}."
            )
        return
    if not (chance.ratio <= MOST_OF_CHANCE and chance.deviations >= LEAST_DEVIATIONS):
        raise DegradationError(
            f"{start}{names[1]} says next to nothing of {names[0]}: on {held} held-out objects "
            f"the relative error is {error:.4g}, {chance.ratio:.0%} of what it is with the objects "
            f"mixed up and {chance.deviations:.1f} standard deviations below that; at most "
            f"{MOST_OF_CHANCE:.0%} and at least {LEAST_DEVIATIONS:g} deviations are needed. See "
            f"whether the same id is the same object in both files ({other})."
        )


def _is_line(spread: Tensor) -> bool:
    largest = float(torch.linalg.eigvalsh(spread)[-1])
    return float(spread.trace()) - largest <= ROUNDING * largest
