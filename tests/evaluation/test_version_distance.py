"""Drift and overlap of embeddings, by hand."""

from __future__ import annotations

import pytest
import torch

from evergram.errors import ShapeError
from evergram.evaluation.version_distance import as_dim, drift, overlap


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
