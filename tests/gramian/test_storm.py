"""Recursive momentum: unbiased where nothing moves, and no lag where all does."""

from __future__ import annotations

import pytest
import torch
from tests.support.gramian_population import (
    DIM,
    K,
    N,
    naive_moment,
    rows,
)

from evergram.gramian.sogram import SOGram
from evergram.gramian.storm import Storm


@pytest.mark.long
def test_at_fixed_embeddings_it_is_unbiased_and_averages() -> None:
    draw = torch.Generator().manual_seed(0)
    total, runs = torch.zeros(DIM, DIM + K), 300
    for _ in range(runs):
        estimator = Storm(DIM, K, 0.05)
        for _ in range(40):
            estimator.update(rows(torch.randint(N, (4,), generator=draw), 1.0, 1.0))
        total += estimator.moment().dense
    torch.testing.assert_close(total / runs, naive_moment(), rtol=0, atol=0.1)


def test_it_follows_what_moves_where_an_average_lags() -> None:
    draw = torch.Generator().manual_seed(1)
    storm, average = Storm(DIM, K, 0.05), SOGram(DIM, K, 0.05)
    errors = torch.zeros(2)
    for step in range(200):
        now, past = 1 + 0.05 * step, 1 + 0.05 * (step - 1)
        batch = rows(torch.randint(N, (20,), generator=draw), now, past if step else None)
        for i, estimator in enumerate((storm, average)):
            estimator.update(batch)
            if step >= 100:
                exact = naive_moment(now)
                errors[i] += (estimator.moment().dense - exact).norm() / exact.norm()
    assert errors[0] < 0.5 * errors[1]


def test_a_batch_without_a_past_is_averaged_as_sogram_does() -> None:
    """As the first batch of an epoch, whose rows were not encoded before the last step."""
    storm = Storm(DIM, K, 0.25)
    storm.update(rows(torch.arange(10)))
    first = storm.moment().dense
    storm.update(rows(torch.arange(10, 20), 2.0))
    other = Storm(DIM, K)
    other.update(rows(torch.arange(10, 20), 2.0))
    torch.testing.assert_close(storm.moment().dense, 0.75 * first + 0.25 * other.moment().dense)
