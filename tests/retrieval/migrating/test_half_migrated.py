"""A half-migrated index: where two models agree, no hit of the fully old index is lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searched_arrays import searched

from evergram.errors import DataError, ShapeError
from evergram.retrieval.migrating.cascade import Metric
from evergram.retrieval.migrating.half_migrated import HalfMigratedSearch, ScoreCalibration, Search
from evergram.stores.adopted_scores import best_by
from evergram.stores.rows import Floats, Hits, Rows

ROWS, DIM = 80, 6
IDS = [f"d{i}" for i in range(ROWS)]


def turned(seed: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return old rows and queries, and the same turned, stretched and shifted: the new model ranks
    as the old one, with scores of another size."""
    draw = np.random.default_rng(seed)
    turn = np.linalg.qr(draw.normal(size=(DIM, DIM)))[0]
    old, queries = draw.normal(size=(ROWS, DIM)), draw.normal(size=(5, DIM))
    new, new_queries = 0.1 * old @ turn + 3 * turn[0], queries @ turn
    both = (old, queries, new, new_queries)
    return tuple(part.astype(np.float32) for part in both)  # type: ignore[return-value]


def half(
    seed: int, migrated: np.ndarray, *, everything_old: bool
) -> tuple[HalfMigratedSearch, tuple[Floats, ...]]:
    old, queries, new, new_queries = turned(seed)
    stays = np.ones(ROWS, bool) if everything_old else ~migrated
    ids = np.array(IDS)
    search = HalfMigratedSearch(
        searched(list(ids[stays]), old[stays], 0),
        searched(list(ids[migrated]), new[migrated], 1),
        old[:30],
        new[:30],
        "ip",
    )
    return search, (old, queries, new, new_queries)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1), st.booleans())
def test_no_hit_of_the_fully_old_index_is_lost(seed: int, share: float, everything: bool) -> None:
    migrated = np.random.default_rng(seed).random(ROWS) < share
    search, (old, queries, _, new_queries) = half(seed, migrated, everything_old=everything)
    hits = search.search(queries, new_queries, 10)
    for one, whole in zip(hits, searched(IDS, old, 0)(queries, 10), strict=True):
        assert set(one.ids.to_pylist()) == set(whole.ids.to_pylist())
        assert (np.diff(one.scores) <= 0).all()


def test_without_calibration_hits_would_be_lost() -> None:
    migrated = np.arange(ROWS) % 2 == 0
    search, (old, queries, _, new_queries) = half(3, migrated, everything_old=False)
    whole = searched(IDS, old, 0)(queries, 10)
    lost = 0
    parts = zip(search.old(queries, 10), search.new(new_queries, 10), whole, strict=True)
    for past, present, expected in parts:
        ids = past.ids.to_pylist() + present.ids.to_pylist()
        order = np.argsort(-np.concatenate([past.scores, present.scores]))[:10]
        lost += len(set(expected.ids.to_pylist()) - {ids[i] for i in order})
    assert lost > 10


def test_a_row_in_both_indexes_is_returned_once_by_its_new_score() -> None:
    search, (_, queries, new, new_queries) = half(1, np.ones(ROWS, bool), everything_old=True)
    hits = search.search(queries, new_queries, 10)
    for one, whole in zip(hits, searched(IDS, new, 1)(new_queries, 10), strict=True):
        assert one.ids == whole.ids
        assert (one.versions == 1).all()


def test_the_line_makes_mean_and_deviation_equal() -> None:
    draw = np.random.default_rng(0)
    old, new = draw.normal(2, 3, (4, 50)), draw.normal(-1, 0.2, (4, 50))
    lines = ScoreCalibration.of(old, new)
    moved = lines.slope[:, None] * old + lines.shift[:, None]
    np.testing.assert_allclose(moved.mean(1), new.mean(1))
    np.testing.assert_allclose(moved.std(1), new.std(1))


def test_what_cannot_be_calibrated_is_refused() -> None:
    with pytest.raises(DataError, match="at least 20"):
        ScoreCalibration.of(np.zeros((1, 19)), np.zeros((1, 19)))
    with pytest.raises(DataError, match="same old score"):
        ScoreCalibration.of(np.ones((1, 30)), np.zeros((1, 30)))
    with pytest.raises(ShapeError, match="same objects"):
        ScoreCalibration.of(np.ones((1, 30)), np.zeros((1, 31)))
    search, (_, queries, _, new_queries) = half(0, np.ones(ROWS, bool), everything_old=True)
    with pytest.raises(ShapeError, match=r"\[5, 6\] is needed"):
        search.search(queries, new_queries[:3], 5)
    with pytest.raises(DataError, match="k is 0"):
        search.search(queries, new_queries, 0)
    with pytest.raises(DataError, match="no metric 'euclid'"):
        replace(search, metric="euclid").search(queries, new_queries, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_scores_are_calibrated_by_the_metric_of_the_searches(metric: Metric) -> None:
    """Rows of many lengths, in a space that is turned and three times as wide: both models rank
    alike by cosine and by distance, and by neither as by inner product."""
    draw = np.random.default_rng(1)
    rows = draw.normal(size=(400, DIM)) * draw.uniform(0.3, 3, (400, 1))
    old, queries = rows.astype(np.float32), draw.normal(size=(20, DIM)).astype(np.float32)
    turn = 3 * np.linalg.qr(draw.normal(size=(DIM, DIM)))[0].astype(np.float32)
    new, new_queries = old @ turn, queries @ turn

    def search(held: npt.NDArray[np.int64], version: int) -> Search:
        def best(asked: Floats, k: int) -> list[Hits]:
            blocks = [Rows(version, pa.array(held), (new if version else old)[held])]
            return best_by(metric, asked, k, blocks, version, pa.int64())

        return best

    moved = draw.random(400) < 0.5
    half = HalfMigratedSearch(
        search(np.flatnonzero(~moved), 0),
        search(np.flatnonzero(moved), 1),
        old[:100],
        new[:100],
        metric,
    )
    whole = search(np.arange(400), 0)(queries, 10)
    for hits, expected in zip(half.search(queries, new_queries, 10), whole, strict=True):
        assert set(hits.ids.to_pylist()) == set(expected.ids.to_pylist())


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (pa.array(["7", "8"]), pa.array(["8", "9"], pa.large_string()), {"7", "8", "9"}),
        (pa.array([7, 8]), pa.array(["8", "9"]), {"7", "8", "9"}),
        (pa.array([7, 8]), pa.array([], pa.null()), {7, 8}),
        (pa.array([], pa.null()), pa.array(["8", "9"]), {"8", "9"}),
    ],
)
def test_ids_of_two_types_are_the_same_as_text(
    old: pa.Array, new: pa.Array, expected: set[int | str]
) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, DIM)).astype(np.float32)

    def answers(ids: pa.Array) -> Search:
        scores = np.ones(len(ids), np.float32)
        return lambda asked, _: [Hits(ids, scores, np.zeros(len(ids), np.int64)) for _ in asked]

    half = HalfMigratedSearch(answers(old), answers(new), vectors, vectors, "ip")
    assert set(half.search(vectors[:1], vectors[:1], 5)[0].ids.to_pylist()) == expected
