"""Changing a model under an index: half migrated, in a cascade, and re-ranked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searched_arrays import searched
from tests.support.text_encoders import ADDRESSES, encoded, sentences, word_vectors

from evergram.errors import DataError, ShapeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.retrieval.migrating.cascade import KeptVectors, Metric, cascade
from evergram.retrieval.migrating.half_migrated import HalfMigratedSearch, ScoreCalibration, Search
from evergram.retrieval.migrating.reranked_search import EncodingLimitError, reranked_search
from evergram.retrieval.reader import Reader
from evergram.stores.adopted_scores import best_by
from evergram.stores.rows import Floats, Hits, Rows

HALF_ROWS, HALF_DIM = 80, 6

HALF_IDS = [f"d{i}" for i in range(HALF_ROWS)]


def turned(seed: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return old rows and queries, and the same turned, stretched and shifted: the new model ranks
    as the old one, with scores of another size."""
    draw = np.random.default_rng(seed)
    turn = np.linalg.qr(draw.normal(size=(HALF_DIM, HALF_DIM)))[0]
    old, queries = draw.normal(size=(HALF_ROWS, HALF_DIM)), draw.normal(size=(5, HALF_DIM))
    new, new_queries = 0.1 * old @ turn + 3 * turn[0], queries @ turn
    both = (old, queries, new, new_queries)
    return tuple(part.astype(np.float32) for part in both)  # type: ignore[return-value]


def half(
    seed: int, migrated: np.ndarray, *, everything_old: bool
) -> tuple[HalfMigratedSearch, tuple[Floats, ...]]:
    old, queries, new, new_queries = turned(seed)
    stays = np.ones(HALF_ROWS, bool) if everything_old else ~migrated
    ids = np.array(HALF_IDS)
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
    migrated = np.random.default_rng(seed).random(HALF_ROWS) < share
    search, (old, queries, _, new_queries) = half(seed, migrated, everything_old=everything)
    hits = search.search(queries, new_queries, 10)
    for one, whole in zip(hits, searched(HALF_IDS, old, 0)(queries, 10), strict=True):
        assert set(one.ids.to_pylist()) == set(whole.ids.to_pylist())
        assert (np.diff(one.scores) <= 0).all()


def test_what_cannot_be_calibrated_is_refused() -> None:
    with pytest.raises(DataError, match="at least 20"):
        ScoreCalibration.of(np.zeros((1, 19)), np.zeros((1, 19)))
    with pytest.raises(DataError, match="same old score"):
        ScoreCalibration.of(np.ones((1, 30)), np.zeros((1, 30)))
    with pytest.raises(ShapeError, match="same objects"):
        ScoreCalibration.of(np.ones((1, 30)), np.zeros((1, 31)))
    search, (_, queries, _, new_queries) = half(0, np.ones(HALF_ROWS, bool), everything_old=True)
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
    rows = draw.normal(size=(400, HALF_DIM)) * draw.uniform(0.3, 3, (400, 1))
    old, queries = rows.astype(np.float32), draw.normal(size=(20, HALF_DIM)).astype(np.float32)
    turn = 3 * np.linalg.qr(draw.normal(size=(HALF_DIM, HALF_DIM)))[0].astype(np.float32)
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
    vectors = np.random.default_rng(0).normal(size=(30, HALF_DIM)).astype(np.float32)

    def answers(ids: pa.Array) -> Search:
        scores = np.ones(len(ids), np.float32)
        return lambda asked, _: [Hits(ids, scores, np.zeros(len(ids), np.int64)) for _ in asked]

    half = HalfMigratedSearch(answers(old), answers(new), vectors, vectors, "ip")
    assert set(half.search(vectors[:1], vectors[:1], 5)[0].ids.to_pylist()) == expected


ROWS, OLD, NEW, QUERIES = 60, 5, 8, 7

IDS = [f"d{i}" for i in range(ROWS)]


class Encoder:
    """Gives rows of an array, and counts how often each was asked for."""

    def __init__(self, vectors: Floats) -> None:
        self.vectors = vectors
        self.asked: list[str] = []
        self.calls = 0

    def __call__(self, ids: pa.Array) -> Floats:
        self.calls += 1
        self.asked += ids.to_pylist()
        rows: Floats = self.vectors[[IDS.index(i) for i in ids.to_pylist()]]
        return rows


def drawn(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_only_first_hits_are_returned_and_only_they_are_encoded_once_each() -> None:
    old, new, queries = drawn(0, ROWS, OLD), drawn(1, ROWS, NEW), drawn(2, QUERIES, NEW)
    encoder = Encoder(new)
    kept = KeptVectors(encoder, NEW)
    first = searched(IDS, old, 0)(drawn(3, QUERIES, OLD), 6)
    hits = cascade(first, queries, kept, 6)
    touched = {i for part in first for i in part.ids.to_pylist()}
    assert sorted(encoder.asked) == sorted(touched)
    assert encoder.calls == 1
    for one, before in zip(hits, first, strict=True):
        assert set(one.ids.to_pylist()) == set(before.ids.to_pylist())
        assert (np.diff(one.scores) <= 0).all()
    cascade(first, queries, kept, 3)
    assert encoder.calls == 1
    assert len(kept) == len(touched)


def test_kept_vectors_outlive_the_process(tmp_path: Path) -> None:
    new = drawn(1, ROWS, NEW)
    kept = KeptVectors(Encoder(new), NEW)
    kept.of(pa.array(IDS[5:9]))
    kept.save(tmp_path / "kept.parquet")
    encoder = Encoder(new)
    again = KeptVectors(encoder, NEW)
    again.of(pa.array(IDS[5:6]))
    again.load(tmp_path / "kept.parquet")
    np.testing.assert_array_equal(again.of(pa.array(IDS[5:10])), new[5:10])
    assert encoder.asked == [IDS[5], IDS[9]]


def test_no_hits_stay_none_and_a_metric_has_a_name() -> None:
    kept = KeptVectors(Encoder(drawn(1, ROWS, NEW)), NEW)
    empty = searched([], drawn(0, 0, OLD), 0)(drawn(3, 1, OLD), 5)
    assert [len(part) for part in cascade(empty, drawn(2, 1, NEW), kept, 5)] == [0]
    with pytest.raises(DataError, match="L2"):
        cascade([], drawn(1, 0, NEW), kept, 2, "L2")  # type: ignore[arg-type]


def test_a_wrong_answer_of_the_model_is_refused_and_not_kept(tmp_path: Path) -> None:
    for answer, error, message in (
        (np.zeros((1, NEW)), ShapeError, "of 2 objects are"),
        (np.full((2, NEW), np.nan), DataError, "'d0' has a NaN"),
    ):
        kept = KeptVectors(lambda _, answer=answer: answer, NEW)  # type: ignore[misc]
        with pytest.raises(error, match=message):
            kept.of(pa.array(IDS[:2]))
        assert len(kept) == 0
    with pytest.raises(DataError, match="nothing to write"):
        kept.save(tmp_path / "kept.parquet")


def test_wrong_queries_are_refused() -> None:
    first = searched(IDS, drawn(0, ROWS, OLD), 0)(drawn(3, 2, OLD), 5)
    kept = KeptVectors(Encoder(drawn(1, ROWS, NEW)), NEW)
    for queries in (drawn(2, 1, NEW), drawn(2, 2, OLD)):
        with pytest.raises(ShapeError, match="one for each list"):
            cascade(first, queries, kept, 5)
    with pytest.raises(DataError, match="k is 0"):
        cascade(first, drawn(2, 2, NEW), kept, 0)


MOVED, NEW_DIM, K = 150, 12, 10

ASKED = word_vectors(["word1 word2 word3", "word4 word9", "word7"], 1, NEW_DIM)


def own(ids: pa.Array) -> np.ndarray:
    texts = sentences()
    return word_vectors([texts[int(i.split("-")[1])] for i in ids.to_pylist()], 1, NEW_DIM)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    lineage = Lineage.create(tmp_path / "line", "line")
    new = encoded(tmp_path, ADDRESSES[1], texts=sentences()[:MOVED])
    align(encoded(tmp_path, ADDRESSES[0]), new, lineage, promote=False)
    with closing(Reader.open(lineage.path)) as reader:
        yield reader


def test_it_ranks_what_the_old_index_proposes_by_new_vectors(reader: Reader) -> None:
    back = reader.transform(ASKED, 1, 0)
    for rerank in (K, 40, 400):
        kept = KeptVectors(own, NEW_DIM)
        got = reranked_search(reader, ASKED, kept, K, 1, rerank=rerank)
        proposed = reader.search(back, rerank, 0)
        touched = set()
        for query, first, hits in zip(ASKED, proposed, got.hits, strict=True):
            ids = first.ids.to_pylist()
            touched |= set(ids)
            scored = {i: float(own(pa.array([i]))[0].astype(float) @ query) for i in ids}
            best = sorted(ids, key=lambda i: -scored[i])[:K]
            assert hits.ids.to_pylist() == best
            np.testing.assert_allclose(hits.scores, [scored[i] for i in best], rtol=1e-4)
            assert set(hits.versions.tolist()) == {1}
        moved = {i for i in touched if int(i.split("-")[1]) < MOVED}
        assert got.counts == {
            "stored": len(moved),
            "kept": 0,
            "computed": len(touched) - len(moved),
        }
        again = reranked_search(reader, ASKED, kept, K, 1, rerank=rerank)
        assert again.counts == {**got.counts, "kept": got.computed, "computed": 0}


def test_rows_that_are_all_of_the_version_are_searched_as_ever(reader: Reader) -> None:
    queries = word_vectors(["word1 word2"], 0, 10)

    def never(ids: pa.Array) -> np.ndarray:
        raise AssertionError("nothing is to be computed")

    got = reranked_search(reader, queries, KeptVectors(never, 10), K, 0)
    assert got.hits[0].ids == reader.search(queries, K, 0)[0].ids
    assert not any(got.counts.values())


def test_ids_restrict_it_and_a_query_may_have_no_hit(reader: Reader) -> None:
    kept = KeptVectors(own, NEW_DIM)
    got = reranked_search(reader, ASKED, kept, K, 1, ids=["text-3", "text-399"])
    assert [set(hits.ids.to_pylist()) for hits in got.hits] == [{"text-3", "text-399"}] * 3
    assert kept.ids().to_pylist() == ["text-399"]
    none = reranked_search(reader, ASKED, kept, K, 1, ids=["nowhere"])
    assert [len(hits) for hits in none.hits] == [0, 0, 0]


def test_wrong_requests_are_refused_and_encode_nothing(reader: Reader) -> None:
    kept = KeptVectors(own, NEW_DIM)
    with pytest.raises(DataError, match="rerank is 5"):
        reranked_search(reader, ASKED, kept, K, 1, rerank=5)
    with pytest.raises(ShapeError, match="Kept vectors have dim 9"):
        reranked_search(reader, ASKED, KeptVectors(own, 9), K, 1)
    with pytest.raises(ShapeError, match="those of version 1 have dim 12"):
        reranked_search(reader, ASKED[:, :10], kept, K, 1)
    with pytest.raises(EncodingLimitError, match="one search may have 20 encoded"):
        reranked_search(reader, ASKED, kept, K, 1, rerank=100, most=20)
    assert len(kept) == 0
