"""Levels, bits and directions, beside the best of a search, every other way and a truncated SVD."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.compatibility.sidecar import coding as packed_bits
from evergram.compatibility.sidecar.coding import (
    MOST_BITS,
    ResidualBasis,
    allocated,
    bit_order,
    normal_levels,
    pack,
    packed_size,
    rounding_errors,
    unpack,
)
from evergram.errors import DataError, ShapeError

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


def test_the_errors_are_those_of_max_and_each_bit_takes_away_less() -> None:
    # Max 1960, Table I, with 2, 4, 8, 16 and 32 levels.
    table = [0.3634, 0.1175, 0.03454, 0.009497, 0.002499]
    errors = rounding_errors()
    assert errors[:6].tolist() == pytest.approx([1.0, *table], rel=0.005)
    assert bool((-errors.diff() > 0).all())
    assert bool(((-errors.diff()).diff() < 0).all())


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


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(1e-6, 1e3), min_size=3, max_size=3), st.integers(0, 3 * MOST_BITS))
def test_no_other_bits_leave_less(values: list[float], budget: int) -> None:
    errors = rounding_errors().tolist()
    falling = sorted(values, reverse=True)

    def left(bits: tuple[int, ...]) -> float:
        return sum(float(v * errors[b]) for v, b in zip(falling, bits, strict=True))

    own = allocated(bit_order(torch.tensor(falling, dtype=torch.float64)), budget)
    assert int(own.sum()) == budget
    assert 0 <= int(own.min()) <= int(own.max()) <= MOST_BITS
    assert bool((own.diff() <= 0).all())
    every = (b for b in product(range(MOST_BITS + 1), repeat=3) if sum(b) == budget)
    assert left(tuple(own.tolist())) == pytest.approx(min(map(left, every)), rel=1e-9)


def test_a_coordinate_that_is_always_zero_has_a_bit_only_if_all_others_are_full() -> None:
    order = bit_order(torch.tensor([1.0, 0.0, 1e-9]))
    assert allocated(order, 2 * MOST_BITS).tolist() == [8, 0, 8]
    assert allocated(order, 2 * MOST_BITS + 1).tolist() == [8, 1, 8]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 8), max_size=20), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_codes_come_back_and_lie_as_written(widths: list[int], rows: int, seed: int) -> None:
    bits = np.array(widths, dtype=np.int64)
    codes = np.random.default_rng(seed).integers(0, 2**bits, (rows, len(bits))).astype(np.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (rows, packed_size(bits))
    assert packed.dtype == np.uint8
    for row, own in zip(packed, codes, strict=True):
        text = "".join(f"{code:0{width}b}" for code, width in zip(own, widths, strict=True))
        assert "".join(f"{byte:08b}" for byte in row) == text.ljust(8 * len(row), "0")
    np.testing.assert_array_equal(unpack(packed, bits), codes)


def test_many_rows_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = np.array([3, 8, 2], dtype=np.int64)
    codes = np.random.default_rng(0).integers(0, 2**bits, (50, 3)).astype(np.uint8)
    whole = pack(codes, bits)
    monkeypatch.setattr(packed_bits, "BLOCK", 40)
    np.testing.assert_array_equal(pack(codes, bits), whole)
    np.testing.assert_array_equal(unpack(whole, bits), codes)


def residuals(seed: int, rows: int = 40, dim: int = 7) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randn(dim, dim, generator=draw, dtype=torch.float64)
    return torch.randn(rows, dim, generator=draw, dtype=torch.float64) @ mixed + 0.3


def basis_of(residual: Tensor, power: float = 5.0) -> ResidualBasis:
    return ResidualBasis.of(residual.T @ residual / len(residual), power)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 7))
def test_the_error_is_that_of_the_best_approximation_of_the_residuals(seed: int, rank: int) -> None:
    residual = residuals(seed)
    singular = torch.linalg.svdvals(residual)
    best = float(singular[rank:].square().sum()) / len(residual)
    basis = basis_of(residual)
    assert float(basis.values[rank:].sum()) == pytest.approx(best, rel=1e-8, abs=1e-10)
    kept = residual @ basis.vectors[:, :rank] @ basis.vectors[:, :rank].T
    measured = float((residual - kept).square().sum(1).mean())
    assert measured == pytest.approx(best, rel=1e-8, abs=1e-10)


def test_on_other_objects_the_error_is_what_they_lack_outside_of_the_kept_directions() -> None:
    basis, other = basis_of(residuals(0, rows=12)), residuals(1)
    seen = basis.on(other.T @ other / len(other), 3.0)
    assert seen.power == 3.0
    for rank in range(8):
        kept = other @ basis.vectors[:, :rank] @ basis.vectors[:, :rank].T
        missing = float((other - kept).square().sum(1).mean())
        assert float(seen.values[rank:].sum()) == pytest.approx(missing, rel=1e-9, abs=1e-9)


def bytes_for(basis: ResidualBasis, share: float) -> int:
    """Return the bytes after which this share of the mean square is left, as eigenvalues say."""
    order = bit_order(basis.values)
    for size in range(len(basis) + 1):
        left = float((basis.values * rounding_errors()[allocated(order, 8 * size)]).sum())
        if left <= share * basis.power:
            return size
    raise AssertionError(share)


def test_bytes_that_are_predicted_by_other_objects_are_nearer_to_the_needed_ones() -> None:
    draw = torch.Generator().manual_seed(0)
    parts = torch.randn(3, 100, 60, generator=draw, dtype=torch.float64)
    sigmas = [part.T @ part / len(part) for part in parts]
    basis = ResidualBasis.of(sigmas[0], 60.0)
    needed = bytes_for(basis.on(sigmas[2], 60.0), 0.3)
    assert abs(bytes_for(basis.on(sigmas[1], 60.0), 0.3) - needed) <= 1
    assert needed - bytes_for(basis, 0.3) > 2


def test_what_is_no_covariance_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\[D, D\]"):
        ResidualBasis.of(torch.zeros(2, 3), 1.0)
    with pytest.raises(ShapeError, match="the basis 7"):
        basis_of(residuals(0)).on(torch.eye(6), 1.0)
    for power in (0.0, math.inf):
        with pytest.raises(DataError, match="finite number above 0"):
            ResidualBasis.of(torch.eye(2), power)
