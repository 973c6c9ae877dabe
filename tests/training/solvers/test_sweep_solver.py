"""Sweeps, against the dense sum over all pairs in float64, and exact least squares."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.small_squares import over_all_pairs, small_squares, small_tables

from evergram.errors import TrainingError
from evergram.training.solvers.sweep_solver import SweepSolver


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.booleans(),
    st.sampled_from([0, 2]),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([1, 64, None]),
)
def test_no_solve_raises_the_objective_and_it_returns_its_value(
    seed: int, sparse: bool, prior: int, steps: int, gathered: int | None
) -> None:
    squares = small_squares(seed, sparse=sparse, prior=prior)
    tables = small_tables(squares, 4, seed)
    solver = SweepSolver(squares, steps, gathered)
    before = over_all_pairs(squares, tables)
    for side in ("query", "candidate"):
        value = solver.solve(side, tables)
        after = over_all_pairs(squares, tables)
        assert after <= before * (1 + 1e-12)
        torch.testing.assert_close(value, after, rtol=1e-10, atol=1e-12)
        before = after


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_fixed_point_has_no_gradient(sparse: bool, steps: int) -> None:
    squares = small_squares(8, sparse=sparse, prior=2)
    tables = small_tables(squares, 4, seed=1)
    solver = SweepSolver(squares, steps)
    for _ in range(3000):
        solver.sweep(tables)
    ready = {side: table.clone().requires_grad_() for side, table in tables.items()}
    gradients = torch.autograd.grad(over_all_pairs(squares, ready), list(ready.values()))
    assert max(float(g.abs().max()) for g in gradients) < 1e-8
    kept = {side: table.clone() for side, table in tables.items()}
    solver.sweep(tables)
    torch.testing.assert_close(tables, kept, rtol=1e-7, atol=1e-8)


def test_as_many_steps_as_dims_are_dense_least_squares() -> None:
    squares = small_squares(4, sparse=True, prior=2)
    tables = small_tables(squares, 3, seed=2)
    held, row = tables["candidate"].clone(), 2
    # A least-squares problem of one equation a term of F, for one query.
    equations, wanted, weights = [], [], []
    for i in (squares.pairs["query"] == row).nonzero()[:, 0].tolist():
        b = squares.pairs["candidate"][i]
        prior = squares.factors["query"][row] @ squares.factors["candidate"][b]
        assert squares.weight is not None
        equations += [held[b], held[b]]
        wanted += [squares.target[i], prior]
        weights += [torch.tensor(0.5 / 18, dtype=torch.float64), squares.weight[i] / 18]
    for other in range(len(held)):
        for r, strength in enumerate(squares.penalty):
            equations.append(held[other])
            wanted.append(squares.factors["query"][row] @ squares.factors["candidate"][other])
            p, q = squares.measures["query"][row, r], squares.measures["candidate"][other, r]
            weights.append(strength * p * q)
    left, right, scale = torch.stack(equations), torch.stack(wanted), torch.stack(weights)
    normal = left.T @ (left * scale[:, None]) + squares.norms["query"][row] * torch.eye(
        3, dtype=torch.float64
    )
    expected = torch.linalg.lstsq(normal, left.T @ (scale * right)).solution
    SweepSolver(squares, steps=6).solve("query", tables)
    torch.testing.assert_close(tables["query"][row], expected, rtol=1e-8, atol=1e-10)


def test_single_precision_follows_double() -> None:
    squares = small_squares(6, sparse=True, prior=2)
    double = small_tables(squares, 4, seed=3)
    single = {side: table.float() for side, table in double.items()}
    value = SweepSolver(squares).sweep(double)
    torch.testing.assert_close(SweepSolver(squares).sweep(single), value, rtol=1e-4, atol=1e-5)
    for side, table in single.items():
        torch.testing.assert_close(table.double(), double[side], rtol=1e-3, atol=1e-4)


def test_rows_that_nothing_moves_stay() -> None:
    squares = small_squares(6)
    still = {
        side: m.index_fill(0, torch.tensor([len(m) - 1]), 0) for side, m in squares.norms.items()
    }
    shares = {
        side: m.index_fill(0, torch.tensor([len(m) - 1]), 0) for side, m in squares.measures.items()
    }
    squares = replace(squares, norms=still, measures=shares)
    tables = small_tables(squares, 4, seed=3)
    last = {side: table[-1].clone() for side, table in tables.items()}
    SweepSolver(squares).sweep(tables)
    for side, row in last.items():
        assert torch.equal(tables[side][-1], row)


def test_refuses_an_objective_without_a_minimum() -> None:
    squares = small_squares(6)
    endless = replace(squares, weight=torch.full_like(squares.target, -50.0))
    with pytest.raises(TrainingError, match="without a minimum"):
        SweepSolver(endless).sweep(small_tables(squares, 4, seed=3))


def test_refuses_numbers_that_are_not_finite() -> None:
    squares = small_squares(6)
    broken = replace(squares, target=squares.target * float("inf"))
    with pytest.raises(TrainingError, match=r"training\.optimizer = 'als'"):
        SweepSolver(broken).sweep(small_tables(squares, 4, seed=3))
