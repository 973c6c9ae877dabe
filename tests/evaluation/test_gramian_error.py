"""Errors of Gramians and gradients; histograms against counting."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergram.evaluation.gramian_error import (
    Truth,
    gradient_error,
    gramian_error,
    score_histograms,
)


def normal(*shape: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


@pytest.mark.parametrize("width", [0, 2])
def test_the_gradient_error_is_that_of_all_embeddings(width: int) -> None:
    a, b, dim = 7, 5, 3
    vectors = {"query": normal(a, dim, seed=0), "candidate": normal(b, dim, seed=1)}
    factors = {"query": normal(a, width, seed=2), "candidate": normal(b, width, seed=3)}
    share = {s: torch.rand(len(v), dtype=torch.float64) for s, v in vectors.items()}
    share = {s: p / p.sum() for s, p in share.items()}
    truths = {
        s: Truth.of(lambda s=s: iter([(vectors[s], share[s], factors[s])]))  # type: ignore[misc]
        for s in vectors
    }
    estimates = {
        s: t.moment + 0.1 * normal(*t.moment.shape, seed=4 + i)
        for i, (s, t) in enumerate(truths.items())
    }

    def gradients(moments: dict[str, Tensor]) -> Tensor:
        # Entity by entity, of Σ p (uᵀ G u − 2 uᵀ H q) with G, H of the other side.
        rows = []
        for side, other in (("query", "candidate"), ("candidate", "query")):
            m = moments[other]
            for u, p, q in zip(vectors[side], share[side], factors[side], strict=True):
                # The form that an estimate gives need not be symmetric: ĝ pushes u by G u.
                rows.append(2 * p * (m[:, :dim] @ u - m[:, dim : dim + width] @ q))
        return torch.cat(rows)

    exact = gradients({s: t.moment for s, t in truths.items()})
    expected = (gradients(estimates) - exact).norm() / exact.norm()
    assert gradient_error(estimates, truths) == pytest.approx(float(expected))
    leaf = {s: v.clone().requires_grad_() for s, v in vectors.items()}
    scores = leaf["query"] @ leaf["candidate"].T
    prior = factors["query"] @ factors["candidate"].T
    weight = torch.outer(share["query"], share["candidate"])
    naive = torch.autograd.grad((weight * (scores - prior).square()).sum(), list(leaf.values()))
    torch.testing.assert_close(exact, torch.cat([g.flatten() for g in naive]))


def test_histograms_of_observed_and_random_pairs() -> None:
    query = torch.eye(4)
    pairs = (torch.arange(4), torch.arange(4))
    histograms = score_histograms(query, query, pairs, samples=40_000, bins=2)
    # Observed pairs score 1; a random pair does in one of four cases.
    assert histograms.edges.tolist() == [0.0, 0.5, 1.0]
    assert histograms.observed.tolist() == [0.0, 2.0]
    assert histograms.random.tolist() == pytest.approx([1.5, 0.5], abs=0.02)
    assert histograms.means[0] == 1
    # Above three quarters, and level with one.
    assert histograms.separation == pytest.approx(0.875, abs=0.01)


def test_the_gramian_error_leaves_factors_out() -> None:
    rows, factors = normal(50, 4, seed=0), normal(50, 2, seed=1)
    share = torch.full((50,), 0.02, dtype=torch.float64)
    truth = Truth.of(lambda: iter([(rows, share, factors)]))
    exact = 0.02 * rows.T @ rows
    wrong = truth.moment + normal(4, 6, seed=2)
    assert gramian_error(wrong, truth) == pytest.approx(
        float((wrong[:, :4] - exact).norm() / exact.norm())
    )
