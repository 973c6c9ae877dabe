"""The penalty against the double sum over all pairs, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.errors import ShapeError
from evergram.gramian.estimator import exact_gramian
from evergram.gramian.penalty import quadratic_penalty


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), st.integers(1, 9), st.integers(1, 4), st.integers(0, 10**6))
def test_its_gradient_is_that_of_the_double_sum(a: int, b: int, dim: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    query = torch.randn(a, dim, dtype=torch.float64, generator=draw, requires_grad=True)
    candidate = torch.randn(b, dim, dtype=torch.float64, generator=draw, requires_grad=True)
    p = torch.rand(a, dtype=torch.float64, generator=draw)
    q = torch.rand(b, dtype=torch.float64, generator=draw)
    p, q = p / p.sum(), q / q.sum()
    naive = torch.zeros((), dtype=torch.float64)
    for i in range(a):
        for j in range(b):
            naive = naive + p[i] * q[j] * torch.dot(query[i], candidate[j]) ** 2
    expected = torch.autograd.grad(naive, [query, candidate])
    # The batch is everybody, once: r = 1/a, so that the weights are p·a and q·b.
    estimate = quadratic_penalty(
        query,
        candidate,
        exact_gramian(lambda: [(query, p)]),
        exact_gramian(lambda: [(candidate, q)]),
        p * a,
        q * b,
    )
    found = torch.autograd.grad(estimate, [query, candidate])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    # Its value is 2g.
    torch.testing.assert_close(estimate, 2 * naive, rtol=1e-10, atol=1e-10)


def test_no_gradient_flows_into_the_gramians() -> None:
    gramian = torch.eye(2, requires_grad=True)
    query = torch.ones(3, 2, requires_grad=True)
    ones = torch.ones(3)
    quadratic_penalty(query, query, gramian, gramian, ones, ones).backward()  # type: ignore[no-untyped-call]
    assert gramian.grad is None


def test_dims_that_differ_are_refused() -> None:
    with pytest.raises(ShapeError, match="dim 2"):
        quadratic_penalty(
            torch.ones(3, 2),
            torch.ones(3, 3),
            torch.eye(2),
            torch.eye(2),
            torch.ones(3),
            torch.ones(3),
        )
