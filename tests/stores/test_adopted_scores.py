"""The slow scores, against a loop in Python."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from evergram.stores.adopted_scores import best_by, scores_by
from evergram.stores.rows import Rows

DRAW = np.random.default_rng(0)
VECTORS = DRAW.normal(size=(50, 5)).astype(np.float32)
QUERIES = DRAW.normal(size=(3, 5)).astype(np.float32)


def by_hand(metric: str, query: list[float], vector: list[float]) -> float:
    product = math.fsum(a * b for a, b in zip(query, vector, strict=True))
    if metric == "ip":
        return product
    if metric == "l2":
        return -(math.dist(query, vector) ** 2)
    length = math.hypot(*vector)
    return product / length / math.hypot(*query) if length else 0.0


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_scores_and_the_best_are_those_of_a_loop(metric: str) -> None:
    vectors = VECTORS.copy()
    vectors[7] = 0
    expected = [[by_hand(metric, q, v) for v in vectors.tolist()] for q in QUERIES.tolist()]
    scores = scores_by(metric, QUERIES.astype(float), vectors.astype(float))
    assert np.allclose(scores, expected, atol=1e-12)
    blocks = [Rows(2, pa.array(range(s, s + 10)), vectors[s : s + 10]) for s in range(0, 50, 10)]
    for k in (1, 7, 99):
        best = best_by(metric, QUERIES, k, blocks, 2, pa.int64())
        for hits, row in zip(best, expected, strict=True):
            assert hits.ids.to_pylist() == sorted(range(50), key=lambda i: -row[i])[:k]
            assert set(hits.versions.tolist()) == {2}
            assert np.allclose(hits.scores, sorted(row, reverse=True)[:k], rtol=1e-6)


def test_of_equal_scores_the_first_rows_are_best_and_an_id_twice_stays_twice() -> None:
    blocks = [Rows(0, pa.array([5, 6, 5]), np.ones((3, 2), np.float32)) for _ in range(2)]
    (hits,) = best_by("ip", np.ones((1, 2), np.float32), 4, blocks, 0, pa.int64())
    assert hits.ids.to_pylist() == [5, 6, 5, 5]
    (none,) = best_by("ip", np.ones((1, 2), np.float32), 4, [], 0, pa.string())
    assert len(none) == 0
    assert none.ids.type == pa.string()


@pytest.mark.filterwarnings("error")
def test_a_score_beyond_float32_is_infinite_without_a_warning() -> None:
    long = np.array([[3e38, 3e38], [1, 0]], np.float32)
    for metric, scores in (("ip", [np.inf, 3e38]), ("l2", [0, -np.inf]), ("cosine", [1, 0.5**0.5])):
        (hits,) = best_by(metric, long[:1], 2, [Rows(0, pa.array([1, 2]), long)], 0, pa.int64())
        assert hits.ids.to_pylist() == [1, 2]
        assert np.allclose(hits.scores, np.array(scores, np.float32))
