"""The penalty against the double sum over all pairs, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.errors import ShapeError
from evergram.gramian.estimator import EntityBatch, Moment, batch_moment
from evergram.gramian.penalty import (
    BatchSide,
    orthogonal_penalty,
    penalty_of_batch,
    quadratic_penalty,
)


def shares(n: int, draw: torch.Generator) -> Tensor:
    share = torch.rand(n, dtype=torch.float64, generator=draw) + 0.01
    return share / share.sum()


def moment(embeddings: Tensor, share: Tensor, factors: Tensor, *, pairs: bool = False) -> Moment:
    """Of everybody, entity by entity; `pairs` keeps it as rows."""
    right = torch.cat([embeddings, factors], dim=1).detach()
    left = (embeddings * share[:, None]).detach()
    if pairs:
        return Moment(None, left, right)
    total = torch.zeros(left.shape[1], right.shape[1], dtype=left.dtype)
    for one, other in zip(left, right, strict=True):
        total += torch.outer(one, other)
    return Moment(total)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 10**6),
)
def test_its_gradient_is_that_of_the_double_sum(
    a: int, b: int, dim: int, width: int, pairs: bool, ridge: float, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    query, candidate = normal(a, dim).requires_grad_(), normal(b, dim).requires_grad_()
    of_query, of_candidate = normal(a, width), normal(b, width)
    p, q = shares(a, draw), shares(b, draw)
    naive = torch.zeros((), dtype=torch.float64)
    constant = 0.0
    for i in range(a):
        for j in range(b):
            prior = torch.dot(of_query[i], of_candidate[j])
            naive = naive + p[i] * q[j] * (torch.dot(query[i], candidate[j]) - prior) ** 2
            constant += float(p[i] * q[j] * prior**2)
    norms = torch.zeros((), dtype=torch.float64)
    for measure, rows in ((p, query), (q, candidate)):
        for share, row in zip(measure, rows, strict=True):
            norms = norms + share * torch.dot(row, row)
    expected = torch.autograd.grad(naive + ridge * norms, [query, candidate])
    # The batch is everybody, once: r = 1/a, so that the weights are p·a and q·b.
    estimate = quadratic_penalty(
        BatchSide(query, p * a, moment(query, p, of_query, pairs=pairs), of_query),
        BatchSide(candidate, q * b, moment(candidate, q, of_candidate, pairs=pairs), of_candidate),
        ridge,
    )
    gradients = torch.autograd.grad(3 * estimate, [query, candidate])
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, 3 * theirs, rtol=1e-10, atol=1e-10)
    # Its value is 2(g − c), and the norms.
    value = 0.5 * (estimate - ridge * norms) + constant
    torch.testing.assert_close(value, naive, rtol=1e-10, atol=1e-10)


def test_further_columns_of_the_moment_are_not_the_prior() -> None:
    """A mean, kept beside the prior, must not leak into the penalty."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 3, generator=draw)
    factors = torch.randn(5, 2, generator=draw)
    share = torch.full((5,), 0.2)
    ones = torch.ones(5)
    with_mean = torch.cat([factors, torch.ones(5, 1)], dim=1)
    sides = [
        BatchSide(rows, ones, moment(rows, share, f, pairs=pairs), factors)
        for f in (factors, with_mean)
        for pairs in (False, True)
    ]
    values = [quadratic_penalty(side, side) for side in sides]
    for value in values[1:]:
        torch.testing.assert_close(value, values[0])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 3), st.integers(0, 10**6))
def test_the_batchs_moments_are_those_that_estimators_make(
    n: int, dim: int, width: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    sides, expected = [], []
    for _ in range(2):
        rows = torch.randn(n, dim, dtype=torch.float64, generator=draw).requires_grad_()
        factors = torch.randn(n, width, dtype=torch.float64, generator=draw)
        weights = torch.rand(n, dtype=torch.float64, generator=draw)
        other = moment(rows, weights, factors)
        sides.append(BatchSide(rows, weights, other, factors))
        batch = EntityBatch(torch.arange(n), weights, rows.detach(), factors)
        expected.append(batch_moment(batch))
    made = penalty_of_batch(sides[0], sides[1], ridge=0.3, strength=2.0)
    for own, right in zip((made.query, made.candidate), expected, strict=True):
        assert own is not None
        assert not own.requires_grad
        torch.testing.assert_close(own, right, rtol=1e-12, atol=1e-12)
    plain = quadratic_penalty(sides[0], sides[1], ridge=0.3)
    torch.testing.assert_close(made.value, 2 * plain)


def test_no_gradient_flows_into_the_gramians() -> None:
    gramian = torch.eye(2, requires_grad=True)
    query = torch.ones(3, 2, requires_grad=True)
    ones = torch.ones(3)
    side = BatchSide(query, ones, Moment(gramian))
    quadratic_penalty(side, side).backward()  # type: ignore[no-untyped-call]
    assert gramian.grad is None


def test_dims_that_differ_are_refused() -> None:
    pairs = Moment(None, torch.ones(5, 4), torch.ones(5, 4))
    sides = [
        BatchSide(torch.ones(3, dim), torch.ones(3), of)
        for dim, of in ((2, Moment(torch.eye(2))), (3, pairs))
    ]
    with pytest.raises(ShapeError, match="Queries have dim 2, candidates 3, the Gramians 2 and 4"):
        quadratic_penalty(sides[0], sides[1])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_orthogonal_regularisation_is_that_of_all_pairs_of_a_side(
    n: int, dim: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, dim, dtype=torch.float64, generator=draw)
    rows = torch.nn.functional.normalize(rows).requires_grad_()
    p = shares(n, draw)
    spread = torch.zeros((), dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            spread = spread + p[i] * p[j] * torch.dot(rows[i], rows[j]) ** 2
    objective = torch.clamp(spread, min=1 / dim + 1e-12)
    penalty = orthogonal_penalty(rows, moment(rows, p, torch.zeros(n, 0)), p * n)
    expected = torch.autograd.grad(objective, rows)[0]
    value = float(spread.detach())
    if abs(value - 1 / dim) > 1e-9:
        torch.testing.assert_close(
            torch.autograd.grad(penalty, rows)[0], expected, rtol=1e-9, atol=1e-9
        )
    if value > 1 / dim + 1e-9:
        torch.testing.assert_close(0.5 * penalty, spread, rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_the_gradients_error_is_that_of_the_gramian_weighted_by_the_other(
    a: int, b: int, dim: int, seed: int
) -> None:
    """[G2] E.1: ‖∇_u g − ∇_u ĝ‖² = 4 ⟨E, E Σ p² u⊗u⟩ with E = G_v − Ĝ_v."""
    draw = torch.Generator().manual_seed(seed)
    query = torch.randn(a, dim, dtype=torch.float64, generator=draw).requires_grad_()
    candidate = torch.randn(b, dim, dtype=torch.float64, generator=draw)
    p, q = shares(a, draw), shares(b, draw)
    none_a, none_b = torch.zeros(a, 0), torch.zeros(b, 0)
    exact = moment(candidate, q, none_b)
    rows = EntityBatch(torch.arange(b), torch.ones(b, dtype=torch.float64), candidate, none_b)
    other = Moment(batch_moment(rows))
    own = moment(query, p, none_a)

    def gradient(of_candidates: Moment) -> Tensor:
        unweighted = BatchSide(candidate[:1].expand(a, dim), torch.zeros(a), of_candidates)
        penalty = quadratic_penalty(BatchSide(query, p * a, own), unweighted)
        return torch.autograd.grad(penalty, query)[0]

    error = (gradient(exact) - gradient(other)).square().sum()
    difference = exact.gramian - other.gramian
    weighted = (query * p[:, None].square()).T @ query
    expected = 4 * (difference * (difference @ weighted)).sum()
    torch.testing.assert_close(error, expected.detach(), rtol=1e-9, atol=1e-12)
