"""An alignment is refused if its vectors are empty, or if it is no better than chance."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.support.embedding_files import randn
from torch import Tensor

from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.chance import LEAST_DEVIATIONS, MOST_OF_CHANCE, Chance
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError, DegradationError
from evergram.releasing.files.alignment_gate import far_means, refuse_degenerate, refuse_error

NAMES = Path("old.npy"), Path("new.npy")
GOOD = Chance(1.4, MOST_OF_CHANCE, LEAST_DEVIATIONS)


def moments_of(old: Tensor, new: Tensor) -> SecondMoments:
    moments = SecondMoments(old.shape[1], new.shape[1])
    moments.add(old, new)
    return moments


def test_a_file_without_content_is_named() -> None:
    some, same = randn(0, 30, 4), torch.ones(30, 3)
    line = torch.arange(30.0)[:, None] * torch.ones(3)
    refuse_degenerate(*NAMES, moments_of(some, randn(1, 30, 3)), (1, 0))
    with pytest.raises(DataError, match=r"new\.npy has no vectors .* all of them are the same"):
        refuse_degenerate(*NAMES, moments_of(some, same), (0, 0))
    with pytest.raises(DataError, match=r"old\.npy has no vectors .* lie on one line"):
        refuse_degenerate(*NAMES, moments_of(line, some), (0, 0))
    with pytest.raises(DataError, match=r"old\.npy .* 2 of 30 are zero"):
        refuse_degenerate(*NAMES, moments_of(some, some), (2, 0))


@pytest.mark.parametrize("scale", [1e-60, 1e-17, 1e20])
def test_lengths_whose_squares_float32_does_not_hold_are_refused(scale: float) -> None:
    good, bad = randn(0, 30, 4).double(), scale * randn(1, 30, 3).double()
    with pytest.raises(DataError, match=r"new\.npy has .* their length is .*e"):
        refuse_degenerate(*NAMES, moments_of(good, bad), (0, 0))
    with pytest.raises(DataError, match=r"old\.npy has .* their length is .*e"):
        refuse_degenerate(*NAMES, moments_of(bad, good), (0, 0))


def test_a_mean_far_from_zero_is_named_where_the_map_has_no_offset() -> None:
    near, far = randn(0, 30, 4), randn(1, 30, 3) + 5
    assert far_means(*NAMES, moments_of(near, far), has_offset=False) == ["new.npy"]
    assert far_means(*NAMES, moments_of(far, near), has_offset=False) == ["old.npy"]
    assert far_means(*NAMES, moments_of(far, far), has_offset=True) == []
    with pytest.raises(DegradationError, match=r"of old\.npy is far from zero: try --transf"):
        refuse_error(0.1, Chance(1.4, 2.0, 0.0), 100, None, NAMES, far=["old.npy"])


def test_an_error_at_the_limit_and_a_map_at_the_edge_of_chance_pass() -> None:
    refuse_error(0.5, GOOD, LEAST_OBJECTS, 0.5, NAMES)
    refuse_error(9.0, GOOD, LEAST_OBJECTS, None, NAMES)


@pytest.mark.parametrize(
    ("error", "chance", "held", "limit", "message"),
    [
        (
            0.51,
            GOOD,
            100,
            0.5,
            "on 100 held-out objects the relative error is 0.51, past",
        ),
        (
            0.1,
            GOOD,
            LEAST_OBJECTS - 1,
            0.5,
            f"and {LEAST_OBJECTS} are needed to hold it",
        ),
        (math.nan, GOOD, 100, None, "its error would be measured on 100 objects"),
        (0.1, Chance(1.4, 0.96, 9.0), 100, None, r"new\.npy says next to nothing of old\.npy"),
        (0.1, Chance(1.4, 0.5, 4.9), 100, None, r"4\.9 standard deviations below that"),
        (0.1, Chance(math.nan, math.nan, 0.0), 100, 1.0, "whether the same id is the same object"),
    ],
)
def test_a_map_past_its_limit_or_no_better_than_chance_is_refused(
    error: float, chance: Chance, held: int, limit: float | None, message: str
) -> None:
    with pytest.raises(DegradationError, match=message):
        refuse_error(error, chance, held, limit, NAMES)


def test_an_infinite_limit_lifts_every_other_and_nan_is_none() -> None:
    refuse_error(math.nan, Chance(1.4, 2.0, 0.0), 0, math.inf, NAMES)
    for limit in (math.nan, -1.0):
        with pytest.raises(DataError, match=r"it is a number such as 0\.5, or inf for no limit"):
            refuse_error(0.1, GOOD, 100, limit, NAMES)
