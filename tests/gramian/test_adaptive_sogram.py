"""The chosen averaging rate is near the best fixed one, however the embeddings move."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergram.gramian.adaptive_sogram import RATES, AdaptiveSOGram
from evergram.gramian.estimator import EntityBatch
from evergram.gramian.sogram import SOGram

DIM, N, B = 6, 300, 32


def batch(embeddings: Tensor, draw: torch.Generator) -> EntityBatch:
    ids = torch.randint(len(embeddings), (B,), generator=draw)
    rows = embeddings[ids]
    return EntityBatch(ids, torch.ones(B), rows, rows[:, :0])


def errors(speed: float, steps: int = 400) -> tuple[float, list[float]]:
    """Return the mean error over the last quarter: of the adaptive rate, and of every fixed one."""
    draw = torch.Generator().manual_seed(0)
    embeddings = torch.randn(N, DIM, generator=draw)
    turn = torch.randn(DIM, DIM, generator=draw)
    turn = torch.linalg.matrix_exp(speed * (turn - turn.T))  # the spectrum stays, axes move
    stretch = torch.linspace(0.3, 2, DIM)
    axes = torch.eye(DIM)
    adaptive, fixed = AdaptiveSOGram(DIM), [SOGram(DIM, 0, rate) for rate in RATES]
    totals = torch.zeros(len(RATES) + 1)
    for step in range(steps):
        axes = axes @ turn
        now = embeddings * stretch @ axes
        rows = batch(now, draw)
        for estimator in (adaptive, *fixed):
            estimator.update(rows)
        if step >= 0.75 * steps:
            exact = now.T @ now / N
            estimates = torch.stack([e.gramian() for e in (adaptive, *fixed)])
            totals += (estimates - exact).flatten(1).norm(dim=1) / exact.norm()
    mean = totals / (0.25 * steps)
    return float(mean[0]), mean[1:].tolist()


@pytest.mark.parametrize("speed", [0.0, 0.002, 0.01, 0.05])
def test_the_chosen_rate_is_near_the_best_fixed_one(speed: float) -> None:
    adaptive, fixed = errors(speed)
    assert adaptive < 1.25 * min(fixed) + 0.01
    assert adaptive < 0.5 * max(fixed)


def test_a_slow_drift_in_a_short_training_is_not_missed() -> None:
    """Rate "auto" models the drift from windows of 32 batches, in which this one does not show."""
    adaptive, fixed = errors(0.004, steps=300)
    slowest = fixed[-1]
    assert slowest > 2 * min(fixed)
    assert adaptive < 1.25 * min(fixed) + 0.005


def test_embeddings_that_shrink_do_not_leave_the_choice_to_the_past() -> None:
    draw = torch.Generator().manual_seed(1)
    embeddings = torch.randn(N, DIM, generator=draw)
    estimator = AdaptiveSOGram(DIM)
    for step in range(400):  # shrinks tenfold, and then rests
        scale = 0.96 ** min(step, 60)
        estimator.update(batch(scale * embeddings, draw))
    exact = scale**2 * embeddings.T @ embeddings / N
    assert float((estimator.gramian() - exact).norm() / exact.norm()) < 0.1
    assert estimator.rate < 0.3


def test_batches_of_zeros_leave_it_finite() -> None:
    estimator = AdaptiveSOGram(2)
    zeros, ones = (torch.full((3, 2), value) for value in (0.0, 1.0))
    for rows in (ones, zeros, zeros, ones):
        estimator.update(EntityBatch(torch.arange(3), torch.ones(3), rows, rows[:, :0]))
        assert bool(torch.isfinite(estimator.gramian()).all())


def test_the_rate_that_is_shown_is_that_of_the_estimate() -> None:
    draw = torch.Generator().manual_seed(0)
    embeddings = torch.randn(N, DIM, generator=draw)
    adaptive = AdaptiveSOGram(DIM)
    fixed = {rate: SOGram(DIM, 0, rate) for rate in RATES}
    for _ in range(50):
        rows = batch(embeddings, draw)
        for estimator in (adaptive, *fixed.values()):
            estimator.update(rows)
    torch.testing.assert_close(adaptive.gramian(), fixed[adaptive.rate].gramian())
