"""Exact search over the living rows of segments, against a sort of all scores in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from evergram.stores.rows import Floats, Rows, row_checks
from evergram.stores.snapshot import brute_force
from evergram.stores.snapshot.brute_force import Best, products, search_all, search_rows
from evergram.stores.snapshot.generation import Part
from evergram.stores.snapshot.segment import Segment
from evergram.stores.snapshot.segment_writer import SegmentWriter

DRAW = np.random.default_rng(0)
VECTORS: Floats = DRAW.standard_normal((500, 6)).astype(np.float32)
QUERIES: Floats = DRAW.standard_normal((3, 6)).astype(np.float32)


@pytest.fixture
def part(tmp_path: Path) -> Part:
    """500 rows in batches of 128, of which every third is dead."""
    writer = SegmentWriter(tmp_path, 0, 0, batch_rows=128)
    rows = Rows(0, pa.array(range(500)), VECTORS)
    writer.add(rows, row_checks(rows))
    return Part(Segment(tmp_path, writer.finish()), np.arange(500) % 3 == 0)


@pytest.fixture(params=[1 << 16, 32])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are compared all at once, or a few at a time."""
    monkeypatch.setattr(brute_force, "LEAST_ROWS", 1)
    monkeypatch.setattr(brute_force, "MOST_ROWS", request.param)


def truth(query: Floats, rows: np.ndarray, k: int) -> set[int]:
    scores = VECTORS[rows].astype(np.float64) @ query
    return set(rows[np.argsort(-scores)[:k]].tolist())


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("k", [1, 10, 400])
def test_the_best_living_rows_are_found(part: Part, count: int, k: int) -> None:
    best = Best(count, k)
    search_all(best, 7, part, QUERIES[:count])
    living = np.flatnonzero(np.arange(500) % 3 != 0)
    for i in range(count):
        assert set(best.rows(i)[:, 0].tolist()) == {7}
        assert set(best.rows(i)[:, 1].tolist()) == truth(QUERIES[i], living, k)


@pytest.mark.usefixtures("small_blocks")
def test_only_the_rows_that_are_asked_for_are_compared(part: Part) -> None:
    rows = np.array([4, 499, 100, 1, 250])
    best = Best(3, 2)
    search_rows(best, 0, part, QUERIES, rows)
    for i in range(3):
        assert set(best.rows(i)[:, 1].tolist()) == truth(QUERIES[i], rows, 2)


def test_rows_of_several_segments_are_ranked_together() -> None:
    best = Best(1, 2)
    best.offer(np.array([[0.1, 0.9]], np.float32), 0, 10)
    best.offer(np.array([[0.5, 0.2]], np.float32), 1, np.array([3, 8]))
    assert sorted(best.rows(0).tolist()) == [[0, 11], [1, 3]]


def test_fewer_rows_than_wanted_are_all_returned() -> None:
    best = Best(2, 5)
    best.offer(np.array([[0.1], [-np.inf]], np.float32), 0, 0)
    assert best.rows(0).tolist() == [[0, 0]]
    assert best.rows(1).tolist() == []


def test_a_product_past_float32_is_infinite_and_no_warning(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 0, 0, batch_rows=8)
    rows = Rows(0, pa.array([0, 1]), np.array([[1, 0], [3e38, 0]], np.float32))
    writer.add(rows, row_checks(rows))
    best = Best(1, 1)
    search_all(best, 0, Part(Segment(tmp_path, writer.finish()), None), rows.vectors[1:])
    assert best.rows(0).tolist() == [[0, 1]]


def test_a_sum_whose_parts_pass_float32_is_right(tmp_path: Path) -> None:
    """Not NaN, which hides all rows that are compared with it, nor infinite, before all others."""
    huge = np.array([[3e38, -3e38, 3e38, -3e38]], np.float32)
    vectors = np.concatenate([VECTORS[:100, :4], huge, -huge]).astype(np.float32)
    writer = SegmentWriter(tmp_path, 0, 0, batch_rows=128)
    rows = Rows(0, pa.array(range(102)), vectors)
    writer.add(rows, row_checks(rows))
    part = Part(Segment(tmp_path, writer.finish()), None)
    queries = np.concatenate([huge, np.ones((1, 4), np.float32), 1e30 * QUERIES[:, :4]])
    with np.errstate(over="ignore"):
        exact = (queries.astype(np.float64) @ vectors.T.astype(np.float64)).astype(np.float32)
    for asked in (slice(0, 1), slice(1, 2), slice(0, 5)):
        best = Best(len(queries[asked]), 3)
        search_all(best, 0, part, queries[asked].astype(np.float32))
        for i, scores in enumerate(exact[asked]):
            top = best.rows(i)[:, 1]
            assert len(top) == 3
            assert scores[top].min() >= np.sort(scores)[-3]
    scores = products(queries[:2].astype(np.float32), vectors)
    assert scores[0, 100] == np.inf
    assert scores[0, 101] == -np.inf
    assert scores[1, 100:].tolist() == [0, 0]
