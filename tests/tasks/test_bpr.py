"""BPR against its definition, pair by pair."""

from __future__ import annotations

import math

import pytest
from tests.support.task_batches import batch_of, normal

from evergram.tasks.bpr import BPR
from evergram.tasks.task import Encoded


def test_bpr_is_the_chance_to_rank_the_pair_first() -> None:
    query, candidate, negative = normal(4, 3), normal(4, 3, seed=1), normal(4, 3, seed=2)
    loss = BPR()(Encoded(query, candidate, negative), batch_of([0, 1, 2, 3]), {})
    expected = 0.0
    for u, v, w in zip(query, candidate, negative, strict=True):
        expected -= math.log(1 / (1 + math.exp(-float(u @ v - u @ w))))
    assert float(loss) == pytest.approx(expected / 4)
