"""The three metrics against sums that are written out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergram.evaluation.degradation import degradation, relative

POSITIVE = st.floats(0.05, 1.0)


def test_by_hand() -> None:
    metrics = degradation(
        {0: 0.2, 1: 0.1, 2: 0.1},
        {"late": {2: 0.6}, "early": {1: 0.7, 2: 0.5}},
        {0: 0.0, 1: 0.3, 2: 0.6},
        {0: 0.2, 1: 0.2, 2: 0.1},
        {"late": {2: 0.8}, "early": {1: 0.7, 2: 0.7}},
    )
    # (0.4 - 0.5) / 0.5, and not the mean of 0, -50 and 0.
    assert metrics.intended == pytest.approx(-20)
    assert metrics.intended_at == pytest.approx({0: 0, 1: -50, 2: 0})
    # Tasks: 0.6 and 0.6 beside 0.8 and 0.7: (0.6 - 0.75) / 0.75.
    assert metrics.unintended == pytest.approx(-20)
    assert metrics.unintended_at == pytest.approx({1: 0, 2: 100 * (0.55 - 0.75) / 0.75})
    assert metrics.total == pytest.approx(-40)
    assert metrics.error == pytest.approx(0.3)
    # Over k >= 1 it is (K + 1) / K as much.
    assert metrics.error_after_first == pytest.approx(0.3 * 3 / 2)
    assert metrics.by_task["early"] == pytest.approx({1: 0, 2: 100 * -0.2 / 0.7})


@pytest.mark.long
@given(st.lists(POSITIVE, min_size=1, max_size=5), st.data())
def test_a_method_that_equals_keep_all_costs_nothing(
    values: list[float], data: st.DataObject
) -> None:
    intended = dict(enumerate(values))
    tasks = {
        name: data.draw(st.dictionaries(st.integers(1, 4), POSITIVE, min_size=1))
        for name in data.draw(st.sets(st.sampled_from("abc")))
    }
    metrics = degradation(intended, tasks, dict.fromkeys(intended, 0.0), intended, tasks)
    assert metrics.intended == 0
    assert metrics.error == 0
    assert (metrics.unintended is None) == (not tasks)
    assert not any(metrics.unintended_at.values())
    assert not any(any(by.values()) for by in metrics.by_task.values())


def test_a_reference_of_zero_has_no_percentage() -> None:
    assert math.isnan(relative(0.5, 0.0))
