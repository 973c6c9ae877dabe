"""Re-ranking over a lineage's stores, beside a search of all new vectors one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.text_encoders import ADDRESSES, encoded, sentences, word_vectors

from evergram.errors import DataError, ShapeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.retrieval.migrating.cascade import KeptVectors
from evergram.retrieval.migrating.reranked_search import EncodingLimitError, reranked_search
from evergram.retrieval.reader import Reader

MOVED, DIM, K = 150, 12, 10
QUERIES = word_vectors(["word1 word2 word3", "word4 word9", "word7"], 1, DIM)


def own(ids: pa.Array) -> np.ndarray:
    texts = sentences()
    return word_vectors([texts[int(i.split("-")[1])] for i in ids.to_pylist()], 1, DIM)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    lineage = Lineage.create(tmp_path / "line", "line")
    new = encoded(tmp_path, ADDRESSES[1], texts=sentences()[:MOVED])
    align(encoded(tmp_path, ADDRESSES[0]), new, lineage, promote=False)
    with closing(Reader.open(lineage.path)) as reader:
        yield reader


def test_it_ranks_what_the_old_index_proposes_by_new_vectors(reader: Reader) -> None:
    back = reader.transform(QUERIES, 1, 0)
    for rerank in (K, 40, 400):
        kept = KeptVectors(own, DIM)
        got = reranked_search(reader, QUERIES, kept, K, 1, rerank=rerank)
        proposed = reader.search(back, rerank, 0)
        touched = set()
        for query, first, hits in zip(QUERIES, proposed, got.hits, strict=True):
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
        again = reranked_search(reader, QUERIES, kept, K, 1, rerank=rerank)
        assert again.counts == {**got.counts, "kept": got.computed, "computed": 0}


def test_rows_that_are_all_of_the_version_are_searched_as_ever(reader: Reader) -> None:
    queries = word_vectors(["word1 word2"], 0, 10)

    def never(ids: pa.Array) -> np.ndarray:
        raise AssertionError("nothing is to be computed")

    got = reranked_search(reader, queries, KeptVectors(never, 10), K, 0)
    assert got.hits[0].ids == reader.search(queries, K, 0)[0].ids
    assert not any(got.counts.values())


def test_ids_restrict_it_and_a_query_may_have_no_hit(reader: Reader) -> None:
    kept = KeptVectors(own, DIM)
    got = reranked_search(reader, QUERIES, kept, K, 1, ids=["text-3", "text-399"])
    assert [set(hits.ids.to_pylist()) for hits in got.hits] == [{"text-3", "text-399"}] * 3
    assert kept.ids().to_pylist() == ["text-399"]
    none = reranked_search(reader, QUERIES, kept, K, 1, ids=["nowhere"])
    assert [len(hits) for hits in none.hits] == [0, 0, 0]


def test_wrong_requests_are_refused_and_encode_nothing(reader: Reader) -> None:
    kept = KeptVectors(own, DIM)
    with pytest.raises(DataError, match="rerank is 5"):
        reranked_search(reader, QUERIES, kept, K, 1, rerank=5)
    with pytest.raises(ShapeError, match="Kept vectors have dim 9"):
        reranked_search(reader, QUERIES, KeptVectors(own, 9), K, 1)
    with pytest.raises(ShapeError, match="those of version 1 have dim 12"):
        reranked_search(reader, QUERIES[:, :10], kept, K, 1)
    with pytest.raises(EncodingLimitError, match="one search may have 20 encoded"):
        reranked_search(reader, QUERIES, kept, K, 1, rerank=100, most=20)
    assert len(kept) == 0
