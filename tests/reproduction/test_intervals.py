"""Intervals of means over seeds."""

from __future__ import annotations

import math

import pytest
import torch
from reproduction.intervals import _POINTS, gain, interval, shown


def tail(point: float, freedom: int) -> float:
    """The chance that Student's variable is above a point, by integrating its density."""
    constant = math.gamma((freedom + 1) / 2) / (
        math.sqrt(freedom * math.pi) * math.gamma(freedom / 2)
    )
    x = torch.linspace(0, point, 200_001, dtype=torch.float64)
    density = constant * (1 + x.square() / freedom).pow(-(freedom + 1) / 2)
    return 0.5 - float(torch.trapezoid(density, x))


@pytest.mark.parametrize("freedom", range(1, len(_POINTS) + 1))
def test_the_points_leave_a_fortieth_above(freedom: int) -> None:
    assert tail(_POINTS[freedom - 1], freedom) == pytest.approx(0.025, abs=2e-5)


def test_an_interval_covers_the_mean_nineteen_times_in_twenty() -> None:
    draw = torch.Generator().manual_seed(0)
    samples = torch.randn(4000, 4, generator=draw, dtype=torch.float64) + 3
    bounds = [interval(row) for row in samples.tolist()]
    covered = sum(b is not None and b[0] < 3 < b[1] for b in bounds)
    assert covered / 4000 == pytest.approx(0.95, abs=0.012)


def test_two_values_have_no_interval() -> None:
    assert interval([1.0, 2.0]) is None
    assert interval([]) is None


def test_a_mean_is_shown_with_its_interval_only_where_there_is_one() -> None:
    assert shown([]) == "–"
    assert shown([0.25]) == "0.2500"
    assert shown([1.0, 2.0, 3.0], 1) == "2.0 ± 2.5"


def test_gains_are_percentages_of_the_baseline() -> None:
    assert gain(0.03, 0.02) == pytest.approx(50)
    assert gain(0.01, 0.02) == pytest.approx(-50)
    assert math.isnan(gain(0.01, 0.0))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_no_interval(value: float) -> None:
    assert interval([1.0, 2.0, value]) is None
    assert "±" not in shown([1.0, 2.0, value])
