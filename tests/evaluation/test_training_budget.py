"""Lengths of trainings by hand, and when a training ends on a plateau."""

from __future__ import annotations

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergram.evaluation.training_budget import Budget, last_gain, training_length


def history(*values: float, every: int = 1) -> list[dict[str, float]]:
    return [{"epoch": (i + 1) * every, "recall@50": value} for i, value in enumerate(values)]


def test_steps_are_those_of_a_loader() -> None:
    assert Budget(500, 2048).steps(10_000) == 500 * 5
    assert Budget(30, 2048, short_batch=False).steps(10_000) == 30 * 4
    assert Budget(2, 5).steps(10) == Budget(2, 5, short_batch=False).steps(10) == 4
    # A corpus that is smaller than a batch is one.
    assert Budget(3, 2048, short_batch=False).steps(7) == 3


def test_a_length_is_a_share_of_the_reference_on_the_same_pairs() -> None:
    length = training_length(
        Budget(30, 16_384), Budget(500, 2048), 16_384 * 2, history(0.1, 0.2), "recall@50"
    )
    assert length.passes == 30
    assert length.share_of_passes == pytest.approx(0.06)
    assert length.share_of_steps == pytest.approx(30 * 2 / (500 * 16))
    assert length.on_plateau is None  # no evaluation is of the last fifth


@pytest.mark.parametrize(
    ("values", "gain"),
    [
        ((0.1, 0.2, 0.3, 0.4, 0.5), 0.25),
        ((0.1, 0.2, 0.3, 0.4, 0.402), 0.005),
        ((0.1, 0.5, 0.3, 0.4, 0.45), 0.0),  # the best came before
    ],
)
def test_the_gain_is_of_the_last_fifth_over_the_best_before(
    values: tuple[float, ...], gain: float
) -> None:
    assert last_gain(history(*values), "recall@50", 5) == pytest.approx(gain)
    length = training_length(Budget(5, 1), Budget(5, 1), 9, history(*values), "recall@50")
    assert length.on_plateau is (gain < 0.01)


@pytest.mark.parametrize(
    ("records", "after"),
    [
        ([], 0),
        (history(0.5), 0),
        (history(0.1, 0.2, 0.3, 0.4), 0),  # training went on to epoch 5
        (history(0.1, 0.2, 0.3, 0.4, 0.4), 4),  # none before the last fifth could be selected
        (history(0.0, 0.0, 0.0, 0.0, 0.1), 0),
        (history(0.1, nan, 0.3, 0.4, 0.4), 0),
        ([{"epoch": k, "map@10": 0.1} for k in range(1, 6)], 0),
    ],
)
def test_what_cannot_be_measured_is_no_plateau(records: list[dict[str, float]], after: int) -> None:
    assert last_gain(records, "recall@50", 5, after=after) is None
    length = training_length(Budget(5, 1), Budget(5, 1), 9, records, "recall@50", after=after)
    assert length.on_plateau is None


@given(st.lists(st.floats(0.01, 1), min_size=5, max_size=40), st.floats(0.5, 2))
def test_a_gain_is_at_least_zero_and_has_no_unit(values: list[float], factor: float) -> None:
    epochs = len(values)
    gain = last_gain(history(*values), "recall@50", epochs)
    assert gain is not None
    assert gain >= 0
    scaled = last_gain(history(*(factor * v for v in values)), "recall@50", epochs)
    assert scaled == pytest.approx(gain, abs=1e-9)
