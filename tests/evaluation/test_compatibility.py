"""Drift, overlap, and the consumer's AUC."""

from __future__ import annotations

import pytest
import torch

from evergram.errors import DataError, ShapeError
from evergram.evaluation.compatibility import as_dim, drift, overlap
from evergram.evaluation.consumers import fit_consumer, roc_auc


def test_drift_is_the_mean_distance() -> None:
    past = torch.tensor([[3.0, 4.0], [0.0, 5.0]])
    moved = past + torch.tensor([[0.0, 2.0], [4.0, 0.0]])
    assert drift(moved, past) == pytest.approx({"l2": 3.0, "relative": 0.6})
    with pytest.raises(ShapeError, match="same objects"):
        drift(moved[:, :1], past)


def test_overlap_counts_shared_neighbours() -> None:
    candidate = torch.eye(4)
    query = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    other = torch.tensor([[4.0, 1.0, 2.0, 3.0]])
    # {0, 1} against {0, 3}
    assert overlap(query, candidate, other, candidate, k=2) == 0.5
    assert overlap(query, candidate, query, candidate, k=2) == 1.0
    assert overlap(query, candidate, other, candidate, k=10) == 1.0


def test_raw_reading_truncates_or_fills() -> None:
    assert as_dim(torch.ones(1, 3), 2).tolist() == [[1.0, 1.0]]
    assert as_dim(torch.ones(1, 2), 3).tolist() == [[1.0, 1.0, 0.0]]


def test_auc_counts_pairs_and_ties_are_half() -> None:
    score = torch.tensor([0.1, 0.4, 0.4, 0.8])
    label = torch.tensor([False, False, True, True])
    # Pairs won: (.4,.1) (.8,.1) (.8,.4), tied (.4,.4): 3.5 of 4.
    assert roc_auc(score, label) == pytest.approx(3.5 / 4)
    with pytest.raises(DataError, match="positive and negative"):
        roc_auc(score, torch.ones(4, dtype=torch.bool))


def test_a_consumer_learns_and_is_the_same_for_the_same_seed() -> None:
    draw = torch.Generator().manual_seed(0)
    embeddings = torch.randn(400, 6, generator=draw)
    label = embeddings[:, 0] + embeddings[:, 1] > 0
    before = torch.random.get_rng_state()
    first = fit_consumer(embeddings[:300], label[:300], seed=1)
    second = fit_consumer(embeddings[:300], label[:300], seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.score(embeddings), second.score(embeddings))
    assert roc_auc(first.score(embeddings[300:]), label[300:]) > 0.95
