"""The lower bound of a mean, beside sums over all that can be drawn."""

from __future__ import annotations

from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, norm

from evergram.errors import DataError
from evergram.evaluation.judged.mean_bound import mean_bound


@pytest.mark.parametrize("queries", [20, 60, 200])
@pytest.mark.parametrize(
    ("share", "loss"), [(0.01, 1.0), (0.05, 1.0), (0.1, 0.3), (0.3, 0.1), (0.5, 0.02)]
)
def test_a_true_mean_is_denied_as_seldom_as_said(queries: int, share: float, loss: float) -> None:
    """Rare large losses and frequent small ones, with a true mean of 0: every number of losses
    that can be drawn, with its chance. 0.005 is for the draws of the bound itself."""
    denied = 0.0
    for losing in range(queries + 1):
        chance = comb(queries, losing) * share**losing * (1 - share) ** (queries - losing)
        if chance < 1e-5:
            continue
        win = share * loss / (1 - share)
        values = torch.tensor([-loss] * losing + [win] * (queries - losing)).double()
        if mean_bound(values) <= 0:
            break  # with more losses the bound is lower still
        denied += chance
    assert denied <= 0.05 + 0.005


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=40))
def test_the_bound_never_falls_where_a_value_rises(pairs: list[tuple[float, float]]) -> None:
    worse = torch.tensor([value for value, _ in pairs], dtype=torch.float64)
    better = (worse + torch.tensor([rise for _, rise in pairs], dtype=torch.float64)).clamp(max=1)
    assert mean_bound(worse) <= mean_bound(better) + 1e-12


@pytest.mark.parametrize("queries", [20, 400])
def test_it_is_exact_where_no_query_loses_and_normal_where_many_do(queries: int) -> None:
    most = beta.ppf(0.95, 1, queries)  # of losses of 1, by Clopper and Pearson
    assert mean_bound(torch.zeros(queries)) == pytest.approx(-most, rel=0.05)
    draw = torch.Generator().manual_seed(0)
    values = (0.2 * torch.randn(4000, generator=draw, dtype=torch.float64)).clamp(-1, 1)
    end = float(values.mean()) + norm.ppf(0.05) * float(values.std()) / 4000**0.5
    assert mean_bound(values) == pytest.approx(end, abs=0.001)


@pytest.mark.parametrize("values", [[0.0, 1.5], [float("nan")], []])
def test_values_beyond_the_bounds_are_refused(values: list[float]) -> None:
    with pytest.raises(DataError, match="from -1 to 1"):
        mean_bound(torch.tensor(values))
