"""Changing a model under an index: half migrated, in a cascade, and re-ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.text_encoders import ADDRESSES, encoded, sentences, word_vectors
from tests.support.two_models import searched

from evergram.errors import DataError, ShapeError
from evergram.lineage.lineage import Lineage
from evergram.migration.cascade import EncodingLimitError, KeptVectors, cascade, reranked_search
from evergram.migration.half_migrated import HalfMigratedSearch, Search
from evergram.releasing.align import align
from evergram.retrieval.reader import Metric, Reader
from evergram.stores.rows import Floats, Hits, Rows, best_by


def drawn(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


HALF_ROWS, HALF_DIM = 80, 6


def half(
    metric: Metric, migrated: np.ndarray, seed: int, *, everything_old: bool
) -> tuple[HalfMigratedSearch, Search, Floats, Floats]:
    """Return a half-migrated index, the fully old one, and queries by both models.

    The new model turns, stretches and (by inner product, which stays a rank by it) shifts the old
    one's vectors: both rank alike, with scores of another size.
    """
    old, queries = drawn(seed, HALF_ROWS, HALF_DIM), drawn(seed + 1, 5, HALF_DIM)
    turn = np.linalg.qr(drawn(seed + 2, HALF_DIM, HALF_DIM))[0]
    if metric == "ip":
        new, new_queries = 0.1 * old @ turn + 3 * turn[0], queries @ turn
    else:
        lengths = 0.3 + np.random.default_rng(seed).random((HALF_ROWS, 1)) * 3
        old *= lengths.astype(np.float32)
        new, new_queries = 3 * old @ turn, 3 * queries @ turn

    def search(held: np.ndarray, version: int) -> Search:
        def best(asked: Floats, k: int) -> list[Hits]:
            blocks = [Rows(version, pa.array(held), (new if version else old)[held])]
            return best_by(metric, asked, k, blocks, version, pa.int64())

        return best

    every = np.arange(HALF_ROWS)
    stays = every if everything_old else np.flatnonzero(~migrated)
    moved = search(np.flatnonzero(migrated), 1)
    found = HalfMigratedSearch(search(stays, 0), moved, old[:30], new[:30], metric)
    return found, search(every, 0), queries, new_queries


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["ip", "cosine", "l2"]), st.integers(0, 10**6), st.floats(0, 1), st.booleans()
)
def test_no_hit_of_the_fully_old_index_is_lost(
    metric: Metric, seed: int, share: float, everything: bool
) -> None:
    migrated = np.random.default_rng(seed).random(HALF_ROWS) < share
    found, whole, queries, new_queries = half(metric, migrated, seed, everything_old=everything)
    hits = found.search(queries, new_queries, 10)
    for one, expected in zip(hits, whole(queries, 10), strict=True):
        assert set(one.ids.to_pylist()) == set(expected.ids.to_pylist())
        assert (np.diff(one.scores) <= 0).all()


def test_what_cannot_be_calibrated_is_refused() -> None:
    found, _, queries, new_queries = half("ip", np.ones(HALF_ROWS, bool), 0, everything_old=True)
    old, new = found.sample_old, found.sample_new
    for samples, error, named in (
        ((old[:19], new[:19]), DataError, "at least 20"),
        ((np.zeros_like(old), new), DataError, "same old score"),
        ((old, new[:29]), ShapeError, "5 and 29 new ones"),
    ):
        with pytest.raises(error, match=named):
            replace(found, sample_old=samples[0], sample_new=samples[1]).search(
                queries, new_queries, 5
            )
    with pytest.raises(ShapeError, match="3 and 30 new ones"):
        found.search(queries, new_queries[:3], 5)
    with pytest.raises(DataError, match="k is 0"):
        found.search(queries, new_queries, 0)
    with pytest.raises(DataError, match="'euclid'"):
        replace(found, metric="euclid").search(queries, new_queries, 5)  # type: ignore[arg-type]


def test_ids_of_two_types_are_the_same_as_text() -> None:
    vectors = drawn(0, 30, HALF_DIM)

    def answers(ids: pa.Array) -> Search:
        scores = np.ones(len(ids), np.float32)
        return lambda asked, _: [Hits(ids, scores, np.zeros(len(ids), np.int64)) for _ in asked]

    none = pa.array([], pa.null())
    texts = pa.array(["8", "9"])
    for old, new, expected in (
        (pa.array(["7", "8"]), texts.cast(pa.large_string()), {"7", "8", "9"}),
        (pa.array([7, 8]), texts, {"7", "8", "9"}),
        (pa.array([7, 8]), none, {7, 8}),
        (none, texts, {"8", "9"}),
    ):
        found = HalfMigratedSearch(answers(old), answers(new), vectors, vectors, "ip")
        assert set(found.search(vectors[:1], vectors[:1], 5)[0].ids.to_pylist()) == expected


ROWS, OLD, NEW, QUERIES = 60, 5, 8, 7
IDS = [f"d{i}" for i in range(ROWS)]


class Encoder:
    """Gives rows of an array, and remembers its calls."""

    def __init__(self, vectors: Floats) -> None:
        self.vectors = vectors
        self.calls: list[list[str]] = []

    def __call__(self, ids: pa.Array) -> Floats:
        self.calls.append(ids.to_pylist())
        rows: Floats = self.vectors[[IDS.index(i) for i in ids.to_pylist()]]
        return rows


def test_only_first_hits_are_returned_and_only_they_are_encoded_once_each() -> None:
    encoder, queries = Encoder(drawn(1, ROWS, NEW)), drawn(2, QUERIES, NEW)
    kept = KeptVectors(encoder, NEW)
    first = searched(IDS, drawn(0, ROWS, OLD), 0)(drawn(3, QUERIES, OLD), 6)
    hits = cascade(first, queries, kept, 6)
    touched = {i for part in first for i in part.ids.to_pylist()}
    assert [sorted(call) for call in encoder.calls] == [sorted(touched)]
    for one, before in zip(hits, first, strict=True):
        assert set(one.ids.to_pylist()) == set(before.ids.to_pylist())
        assert (np.diff(one.scores) <= 0).all()
    cascade(first, queries, kept, 3)
    assert len(encoder.calls) == 1
    assert len(kept) == len(touched)
    empty = searched([], drawn(0, 0, OLD), 0)(drawn(3, 1, OLD), 5)
    assert [len(part) for part in cascade(empty, queries[:1], kept, 5)] == [0]


def test_kept_vectors_outlive_the_process(tmp_path: Path) -> None:
    new = drawn(1, ROWS, NEW)
    kept = KeptVectors(Encoder(new), NEW)
    kept.of(pa.array(IDS[5:9]))
    kept.save(tmp_path / "kept.parquet")
    again = KeptVectors(encoder := Encoder(new), NEW)
    again.of(pa.array(IDS[5:6]))
    again.load(tmp_path / "kept.parquet")
    np.testing.assert_array_equal(again.of(pa.array(IDS[5:10])), new[5:10])
    assert encoder.calls == [[IDS[5]], [IDS[9]]]


def test_wrong_answers_of_the_model_and_wrong_requests_are_refused(tmp_path: Path) -> None:
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
    first = searched(IDS, drawn(0, ROWS, OLD), 0)(drawn(3, 2, OLD), 5)
    kept = KeptVectors(Encoder(drawn(1, ROWS, NEW)), NEW)
    for queries, k, metric, error, message in (
        (drawn(2, 1, NEW), 5, "ip", ShapeError, "one for each list"),
        (drawn(2, 2, OLD), 5, "ip", ShapeError, "one for each list"),
        (drawn(2, 2, NEW), 0, "ip", DataError, "k is 0"),
        (drawn(2, 2, NEW), 5, "L2", DataError, "'L2'"),
    ):
        with pytest.raises(error, match=message):
            cascade(first, queries, kept, k, metric)  # type: ignore[arg-type]


MOVED, NEW_DIM, K = 150, 12, 10
ASKED = word_vectors(["word1 word2 word3", "word4 word9", "word7"], 1, NEW_DIM)


def number(id_: str) -> int:
    return int(id_.split("-")[1])


def own(ids: pa.Array) -> np.ndarray:
    texts = sentences()
    return word_vectors([texts[number(i)] for i in ids.to_pylist()], 1, NEW_DIM)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reranked")
    lineage = Lineage.create(folder / "line", "line")
    new = encoded(folder, ADDRESSES[1], texts=sentences()[:MOVED])
    align(encoded(folder, ADDRESSES[0]), new, lineage, promote=False)
    with closing(Reader.open(lineage.path)) as opened:
        yield opened


@pytest.fixture
def kept() -> KeptVectors:
    return KeptVectors(own, NEW_DIM)


@pytest.mark.parametrize("rerank", [K, 400])
def test_it_ranks_what_the_old_index_proposes_by_new_vectors(
    reader: Reader, kept: KeptVectors, rerank: int
) -> None:
    got = reranked_search(reader, ASKED, kept, K, 1, rerank=rerank)
    proposed = reader.search(reader.transform(ASKED, 1, 0), rerank, 0)
    touched = set()
    for query, first, hits in zip(ASKED, proposed, got, strict=True):
        ids = first.ids.to_pylist()
        touched |= set(ids)
        scored = dict(zip(ids, own(first.ids).astype(float) @ query, strict=True))
        assert hits.ids.to_pylist() == sorted(ids, key=lambda i: -scored[i])[:K]
        best = [scored[i] for i in hits.ids.to_pylist()]
        np.testing.assert_allclose(hits.scores, best, rtol=1e-4)
        assert set(hits.versions.tolist()) == {1}
    assert set(kept.rows()[0].to_pylist()) == {i for i in touched if number(i) >= MOVED}


def test_rows_that_are_all_of_the_version_are_searched_as_ever(reader: Reader) -> None:
    queries = word_vectors(["word1 word2"], 0, 10)
    never: Callable[..., Any] = pytest.fail
    got = reranked_search(reader, queries, KeptVectors(never, 10), K, 0)
    assert got[0].ids == reader.search(queries, K, 0)[0].ids


def test_ids_restrict_it_and_a_query_may_have_no_hit(reader: Reader, kept: KeptVectors) -> None:
    got = reranked_search(reader, ASKED, kept, K, 1, ids=["text-3", "text-399"])
    assert [set(hits.ids.to_pylist()) for hits in got] == [{"text-3", "text-399"}] * 3
    assert kept.rows()[0].to_pylist() == ["text-399"]
    none = reranked_search(reader, ASKED, kept, K, 1, ids=["nowhere"])
    assert [len(hits) for hits in none] == [0, 0, 0]


def test_wrong_requests_are_refused_and_encode_nothing(reader: Reader, kept: KeptVectors) -> None:
    cases: list[tuple[np.ndarray, KeptVectors, dict[str, Any], type[Exception], str]] = [
        (ASKED, kept, {"rerank": 5}, DataError, "rerank is 5"),
        (ASKED, KeptVectors(own, 9), {}, ShapeError, "dim 9"),
        (ASKED[:, :10], kept, {}, ShapeError, "version 1 have dim 12"),
        (ASKED, kept, {"rerank": 100, "most": 20}, EncodingLimitError, "20"),
    ]
    for queries, own_kept, options, error, named in cases:
        with pytest.raises(error, match=named):
            reranked_search(reader, queries, own_kept, K, 1, **options)
        assert len(own_kept) == 0
