"""Changing a model under an index: in a cascade, and re-ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.text_encoders import ADDRESSES, encoded, sentences, word_vectors
from tests.support.two_models import searched

from evergram.errors import DataError, ShapeError
from evergram.lineage.lineage import Lineage
from evergram.migration.cascade import EncodingLimitError, KeptVectors, cascade, reranked_search
from evergram.releasing.align import align
from evergram.retrieval.reader import Reader
from evergram.stores.store import Floats


def drawn(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


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
