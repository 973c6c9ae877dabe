"""The levels of a normal variable, beside the best ones of a search over a grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evergram.compatibility.sidecar.normal_levels import (
    MOST_BITS,
    normal_levels,
    rounding_errors,
)

CELLS = 600


def least_error(levels: int) -> float:
    """Return the least E(z − q)² of so many levels, by dynamic programming over the cells of a
    grid: the parts of the line are intervals of cells, and each has the best level of its own."""
    edges = np.linspace(-6, 6, CELLS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    mass = np.exp(-(middles**2) / 2)
    mass /= mass.sum()
    sums = [np.concatenate([[0.0], np.cumsum(mass * middles**p)]) for p in range(3)]
    starts, ends = np.meshgrid(np.arange(CELLS + 1), np.arange(CELLS + 1), indexing="ij")
    of_mass, of_first, of_second = (s[ends] - s[starts] for s in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.where(ends > starts, of_second - of_first**2 / of_mass, np.inf)
    best = cost[0]
    for _ in range(levels - 1):
        best = (best[:, None] + cost).min(0)
    return float(best[CELLS])


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_no_other_levels_leave_less(bits: int) -> None:
    assert normal_levels(bits)[1] == pytest.approx(least_error(2**bits), rel=0.01)


def test_the_errors_are_those_of_max() -> None:
    # Max 1960, Table I, with 2, 4, 8, 16 and 32 levels.
    table = [0.3634, 0.1175, 0.03454, 0.009497, 0.002499]
    assert rounding_errors()[1:6].tolist() == pytest.approx(table, rel=0.005)


@pytest.mark.parametrize("bits", range(1, MOST_BITS + 2))
def test_the_error_is_that_of_rounding_to_the_nearest_level(bits: int) -> None:
    levels, error = normal_levels(bits)
    grid = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    mass = torch.exp(-grid.square() / 2)
    nearest = levels[torch.bucketize(grid, (levels[1:] + levels[:-1]) / 2)]
    measured = float(((grid - nearest).square() * mass).sum() / mass.sum())
    assert error == pytest.approx(measured, rel=1e-3)
    assert torch.equal(levels, levels.sort().values)
    torch.testing.assert_close(levels, -levels.flip(0), atol=1e-9, rtol=0)


def test_each_bit_takes_away_less_than_the_one_before() -> None:
    taken = -rounding_errors().diff()
    assert float(rounding_errors()[0]) == 1.0
    assert bool((taken > 0).all())
    assert bool((taken.diff() < 0).all())
