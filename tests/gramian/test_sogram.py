"""SOGram at fixed embeddings: no bias, and the variance that Proposition 5 says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.gramian.estimator import EntityBatch
from evergram.gramian.sogram import SOGram


def batch(embeddings: Tensor, ids: Tensor) -> EntityBatch:
    n = len(ids)
    return EntityBatch(ids, torch.ones(n).to(embeddings), embeddings[ids], torch.zeros(n, 0))


def test_before_any_batch_it_is_zero() -> None:
    assert torch.equal(SOGram(3).gramian(), torch.zeros(3, 3))


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_start_is_corrected(decay: float) -> None:
    """One batch again and again: the estimate is that batch's from the first update on."""
    embeddings = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    estimator = SOGram(3, rate=0.01, decay=decay)
    for _ in range(5):
        estimator.update(batch(embeddings, torch.arange(4)))
        torch.testing.assert_close(estimator.gramian(), embeddings.T @ embeddings / 4)


def test_without_the_correction_it_is_short_of_its_start() -> None:
    """[G2] Algorithm 2: (1 − (1 − α)^t) of the batch's Gramian after t of the same batch."""
    embeddings = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    estimator = SOGram(3, rate=0.1, correct_start=False)
    for step in range(1, 6):
        estimator.update(batch(embeddings, torch.arange(4)))
        expected = (1 - 0.9**step) * (embeddings.T @ embeddings / 4)
        torch.testing.assert_close(estimator.gramian(), expected)


@pytest.mark.long
def test_it_is_unbiased_at_fixed_embeddings() -> None:
    draw = torch.Generator().manual_seed(1)
    embeddings = torch.randn(30, 2, generator=draw)
    exact = embeddings.T @ embeddings / 30
    total, runs = torch.zeros(2, 2), 3000
    for _ in range(runs):
        estimator = SOGram(2, rate=0.2)
        for _ in range(6):
            estimator.update(batch(embeddings, torch.randint(30, (4,), generator=draw)))
        total += estimator.gramian()
    # The standard error of one batch's entries is below 1.5/√(4·3000).
    torch.testing.assert_close(total / runs, exact, rtol=0, atol=0.06)


@pytest.mark.long
@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_its_variance_is_that_of_proposition_5(rate: float) -> None:
    draw = torch.Generator().manual_seed(2)
    embeddings = torch.randn(50, 3, generator=draw)
    exact = embeddings.T @ embeddings / 50
    estimator = SOGram(3, rate=rate)
    one, averaged = [], []
    for step in range(20_000):
        rows = torch.randint(50, (5,), generator=draw)
        estimator.update(batch(embeddings, rows))
        if step > 500:
            single = embeddings[rows].T @ embeddings[rows] / 5
            one.append((single - exact).square().sum())
            averaged.append((estimator.gramian() - exact).square().sum())
    ratio = float(torch.stack(averaged).mean() / torch.stack(one).mean())
    assert ratio == pytest.approx(rate / (2 - rate), rel=0.15)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 1.0), st.integers(1, 60), st.floats(0.0, 0.2), st.integers(0, 10**6))
def test_its_bias_keeps_to_the_bound_of_proposition_5(
    rate: float, steps: int, speed: float, seed: int
) -> None:
    """Full batches, so that there is no noise: what is left is the lag, at most δ(1/α − 1)."""
    draw = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(6, 3, dtype=torch.float64, generator=draw)
    estimator = SOGram(3, rate=rate).double()
    ids, moved, last = torch.arange(6), 0.0, None
    exact = embeddings.T @ embeddings / 6
    for _ in range(steps):
        embeddings = embeddings + speed * torch.randn(6, 3, dtype=torch.float64, generator=draw)
        exact = embeddings.T @ embeddings / 6
        moved = max(moved, 0.0 if last is None else float((exact - last).norm()))
        last = exact
        estimator.update(batch(embeddings, ids))
    # The start is corrected, so that Prop. 5's second term is not there.
    assert float((estimator.gramian() - exact).norm()) <= moved * (1 / rate - 1) + 1e-9
