"""What codes leave out cannot be among the best, by errors no larger than those that were seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergram.stores.code_estimates import WIDER, looked_at, tell_apart


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_more_rows_are_looked_at_the_second_time() -> None:
    assert looked_at(10, 3) == (30, 30 * WIDER)


@pytest.mark.parametrize(
    ("scores", "estimates", "k", "apart"),
    [
        # Without errors the smallest estimate is the limit.
        ([5.0, 3.0, 1.0], [5.0, 3.0, 1.0], 2, True),
        # A row like the first, which is better by 2 than its estimate, may be behind the last.
        ([5.0, 3.0, 2.0], [3.0, 3.0, 2.0], 2, False),
        ([5.0, 4.0, 2.0], [3.0, 4.0, 2.0], 2, True),
        # Estimates that are too large hide nothing.
        ([5.0, 3.0, 1.0], [9.0, 8.0, 3.0], 2, True),
        # All that were looked at are asked for.
        ([5.0, 3.0, 1.0], [5.0, 3.0, 1.0], 3, True),
        ([5.0, 3.0, 1.0], [5.0, 3.0, 0.5], 3, True),
        ([5.0, 3.0, 1.0], [4.0, 3.0, 1.0], 3, False),
        # What cannot be compared tells nothing apart.
        ([5.0, 3.0, 1.0], [5.0, float("nan"), 1.0], 2, False),
    ],
)
def test_examples(scores: list[float], estimates: list[float], k: int, apart: bool) -> None:
    assert tell_apart(floats(*scores), floats(*estimates), k) is apart


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(8, 40), st.floats(0, 3))
def test_a_row_that_is_left_out_is_none_of_the_best_or_worse_estimated_than_any(
    seed: int, k: int, size: int, noise: float
) -> None:
    draw = np.random.default_rng(seed)
    truth = draw.standard_normal(60).astype(np.float32)
    estimates = (truth + noise * draw.standard_normal(60)).astype(np.float32)
    order = np.argsort(-estimates, kind="stable")
    looked, left = order[:size], order[size:]
    largest = (truth - estimates)[looked].max(initial=0.0)
    kth = np.sort(truth[looked])[-k]
    # The best row that may be left out: with the smallest estimate, and as much better than it.
    hides_best = estimates[looked].min() + largest > kth
    assert tell_apart(truth[looked], estimates[looked], k) == (not hides_best)
    if not hides_best:
        hidden = left[(truth - estimates)[left] <= largest]
        assert (truth[hidden] <= kth + 1e-5).all()
