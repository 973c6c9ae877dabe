"""The test of a mean by betting, beside sums over all that can be drawn."""

from __future__ import annotations

from itertools import product
from math import comb, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.errors import DataError
from evergram.evaluation.judged.betting_test import betting_test


@settings(deadline=None)
@given(st.integers(1, 40), st.floats(0.01, 0.9), st.floats(0.02, 1.0), st.floats(-0.5, 0.5))
def test_true_means_are_denied_as_seldom_as_said(
    queries: int, share: float, loss: float, mean: float
) -> None:
    """Of two values, `share` of them the lower one, with a true mean of `mean`: every number of
    lower ones that can be drawn, with its chance."""
    lower = max(mean - loss, -1.0)
    higher = (mean - share * lower) / (1 - share)
    if higher > 1:
        return
    denied, capital = 0.0, 0.0
    for losing in range(queries + 1):
        chance = comb(queries, losing) * share**losing * (1 - share) ** (queries - losing)
        values = torch.tensor([lower] * losing + [higher] * (queries - losing)).double()
        bound = betting_test(values, mean)
        denied += chance * (bound <= 0.05)
        capital += chance * min(1 / bound, 1e300) if bound < 1 else 0.0
    assert denied <= 0.05
    # What is won above the stake is at most the stake, as the game is fair.
    assert capital <= 1 + 1e-9


def test_the_game_is_fair() -> None:
    """The mean capital over all draws of three values is the stake, by the products themselves."""
    values, chances, mean = (-0.6, 0.1, 0.9), (0.3, 0.5, 0.2), 0.05
    capital = 0.0
    for drawn in product(range(3), repeat=4):
        chance = 1.0
        for place in drawn:
            chance *= chances[place]
        own = 0.0
        for share in range(1, 17):
            product_of_factors = 0.5 if share == 16 else 0.5 / 15
            for place in drawn:
                product_of_factors *= 1 + share / 16 / (1 + mean) * (values[place] - mean)
            own += product_of_factors
        bound = betting_test(torch.tensor([values[p] for p in drawn]).double(), mean)
        assert bound == pytest.approx(min(1.0, 1 / own))
        capital += chance * own
    assert capital == pytest.approx(1.0)


@pytest.mark.parametrize("allowed", [0.02, 0.005])
def test_queries_that_do_not_differ_show_what_so_many_can(allowed: float) -> None:
    """At least the number of the rule of three, and at most that for half of the stake."""
    fewest = next(
        queries
        for queries in range(1, 5000)
        if betting_test(torch.zeros(queries), -allowed) <= 0.05
    )
    assert -log(0.05) / -log(1 - allowed) <= fewest <= -log(0.025) / -log(1 - allowed) + 1


def test_a_gain_of_nearly_all_is_shown_by_few_and_a_small_one_is_not() -> None:
    large = torch.tensor([0.3] * 23 + [-0.1] * 3)
    assert betting_test(large, 0.0) < 0.01
    assert betting_test(torch.full((26,), 0.03), 0.0) > 0.05
    assert betting_test(-large, 0.0) == 1


def test_a_loss_of_all_takes_the_largest_bet_alone() -> None:
    values = torch.tensor([-1.0] + [1.0] * 30)
    assert 0 < betting_test(values, 0.0) < 1e-4


@pytest.mark.parametrize(("values", "mean"), [([0.0, 1.5], 0.0), ([0.0], 1.0), ([float("nan")], 0)])
def test_values_beyond_the_bounds_are_refused(values: list[float], mean: float) -> None:
    with pytest.raises(DataError, match="from -1 to 1"):
        betting_test(torch.tensor(values), mean)
