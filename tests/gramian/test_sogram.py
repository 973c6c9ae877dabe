"""SOGram at fixed embeddings: unbiased after correction, and as noisy as [G2] Prop. 5 says."""

from __future__ import annotations

import pytest
import torch

from evergram.gramian.sogram import SOGram


def test_before_the_first_update_it_is_zero_and_after_it_the_batch() -> None:
    estimator = SOGram(2, rate=0.1)
    assert torch.equal(estimator.gramian(), torch.zeros(2, 2))
    estimator.update(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0]))
    # 0.1 · 3 [1 2; 2 4] / (1 − 0.9)
    torch.testing.assert_close(estimator.gramian(), torch.tensor([[3.0, 6.0], [6.0, 12.0]]))


@pytest.mark.parametrize("steps", [1, 3, 40])
def test_the_corrected_estimate_is_unbiased(steps: int) -> None:
    draw = torch.Generator().manual_seed(1)
    embeddings = torch.randn(30, 3, generator=draw)
    exact = embeddings.T @ embeddings / 30
    total = torch.zeros(3, 3)
    runs = 3000
    for _ in range(runs):
        estimator = SOGram(3, rate=0.2)
        for _ in range(steps):
            rows = torch.randint(30, (4,), generator=draw)
            estimator.update(embeddings[rows], torch.ones(4))
        total += estimator.gramian()
    # The standard error of one batch's entries is below 1.5/√(4·3000).
    torch.testing.assert_close(total / runs, exact, rtol=0, atol=0.06)


@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_its_variance_is_that_of_proposition_5(rate: float) -> None:
    draw = torch.Generator().manual_seed(2)
    embeddings = torch.randn(50, 3, generator=draw)
    exact = embeddings.T @ embeddings / 50
    estimator = SOGram(3, rate=rate)
    one, averaged = [], []
    for step in range(20_000):
        rows = torch.randint(50, (5,), generator=draw)
        estimator.update(embeddings[rows], torch.ones(5))
        if step > 500:
            batch = embeddings[rows].T @ embeddings[rows] / 5
            one.append((batch - exact).square().sum())
            averaged.append((estimator.gramian() - exact).square().sum())
    ratio = float(torch.stack(averaged).mean() / torch.stack(one).mean())
    assert ratio == pytest.approx(rate / (2 - rate), rel=0.15)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="averaging rate"):
        SOGram(2, rate)
