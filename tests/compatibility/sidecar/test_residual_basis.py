"""What r coordinates leave, beside the error of a truncated SVD of the residuals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.compatibility.sidecar.bit_allocation import allocated, bit_order
from evergram.compatibility.sidecar.normal_levels import rounding_errors
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
    with pytest.raises(ShapeError, match="the basis 7"):
        basis.on(torch.eye(6), 1.0)


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


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\[D, D\]"):
        ResidualBasis.of(torch.zeros(2, 3), 1.0)
    for power in (0.0, math.inf):
        with pytest.raises(DataError, match="finite number above 0"):
            ResidualBasis.of(torch.eye(2), power)
