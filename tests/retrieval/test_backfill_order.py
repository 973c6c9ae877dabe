"""The rows that a backfill refreshes, the largest predicted error first."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.lineages import vectors_of
from tests.support.older_stores import older_store

from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfill import Backfill

pytestmark = pytest.mark.usefixtures("backfill_in_memory")


def test_the_largest_predicted_error_comes_first(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward map that loses the last two coordinates: rows that are long there are worst."""
    forward = torch.eye(10, 8, dtype=torch.float64)
    forward[6:] = 0
    offset = torch.zeros(10, dtype=torch.float64)
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: (forward, offset))
    store = older_store(lineage)
    work = Backfill(lineage, store, "object")
    work.plan(batch=50)
    work.apply(rows=50)
    first = {i for rows in store.scan(2) for i in rows.ids.to_pylist()}
    vectors = vectors_of(1).numpy()
    back = np.array([*vectors.T[:6] * 2 / 3 + 0.2, np.full(300, 0.2), np.full(300, 0.2)]).T
    lost = np.linalg.norm(back - vectors, axis=1)
    assert first == set(np.argsort(-lost)[:50].tolist())
