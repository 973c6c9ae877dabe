"""The predicted error of r coordinates, beside the error of a truncated SVD of the residuals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.compatibility.sidecar.residual_basis import ResidualBasis
from evergram.errors import DataError, ShapeError


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
    assert basis.relative_error(rank) == pytest.approx(math.sqrt(best / 5.0), rel=1e-8, abs=1e-7)
    kept = residual @ basis.vectors[:, :rank] @ basis.vectors[:, :rank].T
    measured = float((residual - kept).square().sum(1).mean())
    assert measured == pytest.approx(best, rel=1e-8, abs=1e-10)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 3))
def test_the_rank_for_an_error_is_the_first_that_reaches_it(seed: int, error: float) -> None:
    basis = basis_of(residuals(seed))
    errors = [basis.relative_error(r) for r in range(8)]
    assert errors == sorted(errors, reverse=True)
    first = next(r for r in range(8) if errors[r] <= error or r == 7)
    assert basis.rank_for_error(error) == first


def test_on_other_objects_the_error_is_what_they_lack_outside_of_the_kept_directions() -> None:
    basis, other = basis_of(residuals(0, rows=12)), residuals(1)
    seen = basis.on(other.T @ other / len(other), 3.0)
    for rank in range(8):
        kept = other @ basis.vectors[:, :rank] @ basis.vectors[:, :rank].T
        missing = float((other - kept).square().sum(1).mean()) / 3.0
        assert seen.relative_error(rank) == pytest.approx(math.sqrt(missing), rel=1e-9, abs=1e-7)
    with pytest.raises(ShapeError, match="the basis 7"):
        basis.on(torch.eye(6), 1.0)


def test_a_rank_that_is_predicted_by_other_objects_is_nearer_to_the_needed_one() -> None:
    draw = torch.Generator().manual_seed(0)
    parts = torch.randn(3, 100, 60, generator=draw, dtype=torch.float64)
    sigmas = [part.T @ part / len(part) for part in parts]
    basis = ResidualBasis.of(sigmas[0], 60.0)
    needed = basis.on(sigmas[2], 60.0).rank_for_error(0.5)
    assert abs(basis.on(sigmas[1], 60.0).rank_for_error(0.5) - needed) <= 2
    assert needed - basis.rank_for_error(0.5) > 10


def test_a_budget_is_a_coordinate_a_byte() -> None:
    basis = basis_of(residuals(0))
    assert [basis.rank_for_bytes(b) for b in (0, 0.9, 3.2, 1000)] == [0, 0, 3, 7]


def test_wrong_input_is_refused() -> None:
    basis = basis_of(residuals(0))
    with pytest.raises(ShapeError, match="0 to 7"):
        basis.relative_error(8)
    for wrong in (-1.0, math.nan):
        with pytest.raises(DataError, match="or more"):
            basis.rank_for_error(wrong)
        with pytest.raises(DataError, match="or more"):
            basis.rank_for_bytes(wrong)
    with pytest.raises(ShapeError, match=r"\[D, D\]"):
        ResidualBasis.of(torch.zeros(2, 3), 1.0)
    for power in (0.0, math.inf):
        with pytest.raises(DataError, match="finite number above 0"):
            ResidualBasis.of(torch.eye(2), power)
