"""The closed form for two sides against the normal equations written out as one long vector."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.compatibility.closed_form_fit import fit_closed_form
from evergram.compatibility.consumers.side_fit import SideMoments, fit_sides, solve
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError, ShapeError

SEEDS = st.integers(0, 10**6)
OLD, NEW = 3, 5


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def metric_of(seed: int) -> Tensor:
    root = randn(seed, OLD, OLD)
    return root @ root.T + 0.3 * torch.eye(OLD, dtype=torch.float64)


def pairs(seed: int, rows: int) -> tuple[Tensor, Tensor]:
    new = randn(seed, rows, NEW) @ randn(seed + 1, NEW, NEW) + 0.5
    return new @ randn(seed + 2, NEW, OLD) + randn(seed + 3, rows, OLD) - 0.4, new


def moments_of(old: Tensor, new: Tensor) -> SecondMoments:
    moments = SecondMoments(OLD, NEW)
    moments.add(old, new)
    return moments


def side(seed: int, rows: int, metric: Tensor | None) -> tuple[SideMoments, Tensor, Tensor]:
    old, new = pairs(seed, rows + 6)
    held = moments_of(old[rows:], new[rows:])
    return SideMoments(moments_of(old[:rows], new[:rows]), held, metric), old[:rows], new[:rows]


def long_solution(sides: list[tuple[SideMoments, Tensor, Tensor]], rho: float) -> Tensor:
    """[W b] of Σ_s A_s (W (Z_sᵀ Z_s + n_s ρ I) − Y_sᵀ Z_s) = 0, by Kronecker products."""
    left = torch.zeros(OLD * (NEW + 1), OLD * (NEW + 1), dtype=torch.float64)
    right = torch.zeros(OLD * (NEW + 1), dtype=torch.float64)
    no_ridge_for_offsets = torch.diag(torch.tensor([1.0] * NEW + [0.0], dtype=torch.float64))
    for moments, old, new in sides:
        wide = torch.cat([new, torch.ones(len(new), 1, dtype=torch.float64)], dim=1)
        gram = wide.T @ wide + len(new) * rho * no_ridge_for_offsets
        left += torch.kron(moments.weighing, gram)
        right += (moments.weighing @ old.T @ wide).reshape(-1)
    solution: Tensor = torch.linalg.solve(left, right)
    return solution.reshape(OLD, NEW + 1)


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.sampled_from([0.0, 0.1, 3.0]))
def test_it_solves_the_normal_equations_of_both_sides(seed: int, rho: float) -> None:
    sides = [side(seed, 30, metric_of(seed)), side(seed + 1, 50, metric_of(seed + 5))]
    weight, offset = solve([s[0] for s in sides], rho, offset=True)
    assert offset is not None
    expected = long_solution(sides, rho)
    torch.testing.assert_close(weight, expected[:, :-1], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(offset, expected[:, -1], rtol=1e-6, atol=1e-8)


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.sampled_from([0.0, 0.5]))
def test_the_gradient_of_the_weighed_error_vanishes(seed: int, rho: float) -> None:
    sides = [side(seed, 30, metric_of(seed)), side(seed + 1, 50, metric_of(seed + 5))]
    weight = solve([s[0] for s in sides], rho)[0].requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for moments, old, new in sides:
        root = torch.linalg.cholesky(moments.weighing, upper=True)
        total = total + ((new @ weight.T - old) @ root.T).square().sum()
        total = total + len(new) * rho * (root @ weight).square().sum()
    gradient = torch.autograd.grad(total, weight)[0]
    assert float(gradient.abs().max()) < 1e-8 * float(total.detach())


def test_one_matrix_for_both_sides_drops_out() -> None:
    """Also with a ridge, which is measured as the error is; two different ones do not."""
    metric = metric_of(0)
    sides = [side(0, 30, metric)[0], side(1, 50, metric)[0]]
    plain = [SideMoments(s.moments, s.held, None) for s in sides]
    for rho in (0.0, 0.4):
        torch.testing.assert_close(solve(sides, rho)[0], solve(plain, rho)[0])
    mixed = [sides[0], SideMoments(sides[1].moments, sides[1].held, metric_of(9))]
    assert float((solve(mixed, 0.0)[0] - solve(plain, 0.0)[0]).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", ["linear", "affine"])
def test_without_matrices_it_is_the_closed_form_of_all_pairs(kind: str) -> None:
    first, second = side(0, 30, None)[0], side(1, 50, None)[0]
    seen, held = SecondMoments(OLD, NEW), SecondMoments(OLD, NEW)
    for each in (first, second):
        seen.merge(each.moments)
        held.merge(each.held)
    expected, fitted = fit_closed_form(kind, seen, held), fit_sides(kind, first, second)
    # The ridge of the affine fit is in the unit of moments about the means.
    close = {"linear": 1e-6, "affine": 0.1}[kind]
    assert fitted.ridge == pytest.approx(expected.ridge, rel=close, abs=1e-6)
    torch.testing.assert_close(fitted.weight, expected.weight, rtol=close, atol=close)
    assert (fitted.offset is None) == (kind == "linear")
    made = fitted.transform.affine()
    assert made is not None
    torch.testing.assert_close(made[0], fitted.weight.float())


def test_a_side_without_pairs_does_not_count() -> None:
    first, empty = side(0, 30, metric_of(0))[0], SecondMoments(OLD, NEW)
    other = SideMoments(empty, empty, metric_of(1))
    for order in ([first, other], [other, first]):
        alone = solve([SideMoments(first.moments, first.held, None)], 0.2)
        torch.testing.assert_close(solve(order, 0.2)[0], alone[0])
    with pytest.raises(DataError, match="no pairs to fit"):
        solve([other, other], 0.0)


def test_directions_without_vectors_have_no_weight() -> None:
    flat = torch.eye(NEW, dtype=torch.float64)
    flat[-1, -1] = 0
    sides = []
    for seed in (0, 1):
        old, new = pairs(seed, 40)
        moments = moments_of(old, new @ flat)
        sides.append(SideMoments(moments, moments, metric_of(seed)))
    weight = solve(sides, 0.0)[0]
    assert float(weight[:, -1].abs().max()) < 1e-12
    assert float(weight.abs().max()) > 0.1


def test_a_kind_without_a_closed_form_for_two_matrices_is_refused() -> None:
    one = side(0, 30, None)[0]
    with pytest.raises(ShapeError, match="'orthogonal' has no closed form for two sides"):
        fit_sides("orthogonal", one, one)
