"""LanceDB's indexes of fewer bytes: they choose rows, whole vectors score, and all else is as it
was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lancedb.index
import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import same_hits
from tests.support.dictionary_store import DictionaryStore
from tests.support.planted import planted, recall

from evergram.compatibility.chain import Chain
from evergram.errors import DataError
from evergram.retrieval.metric_search import Field, by_cosine, by_distance, by_inner_product
from evergram.retrieval.version_maps import NORM_SCALE, VersionMaps
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.lance import lance_index
from evergram.stores.lance.lance_index import FORMS, codes_of
from evergram.stores.lance.lance_store import LanceStore
from evergram.stores.open_store import open_store
from evergram.stores.store import Floats, Rows, Space

ROWS, DIM = 4_000, 31
KINDS = {"float32": "IvfFlat", "int8": "IvfSq", "binary": "IvfRq"}
# Lists of whole vectors take 4 bytes a coordinate, and each row's place and list are beside it.
MOST_BYTES = {"float32": 8 * DIM, "int8": DIM + 1 + 8, "binary": (DIM + 1) / 8 + 20}


def filled(folder: Path, vectors: Floats) -> LanceStore:
    store = LanceStore.open(f"lance:{folder}/lance#emb", "int64")
    store.load(Space(0, vectors.shape[1], "sha256:0"), [block(range(len(vectors)), vectors)])
    return store


def block(ids: Any, vectors: Floats) -> Rows:
    return Rows(0, pa.array(ids, pa.int64()), vectors)


def indexes(store: LanceStore) -> list[Any]:
    return [one for one in store._table(0).list_indices() if list(one.columns) == ["vector"]]


@dataclass(frozen=True)
class Indexed:
    """Rows as a lineage stores them, behind which are their squared lengths."""

    folder: Path
    store: LanceStore
    codes: IndexCodes
    stored: Floats
    queries: Floats


@pytest.fixture(scope="module", params=[FLOAT32, IndexCodes("int8", 4), IndexCodes("binary", 16)])
def indexed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Indexed]:
    folder = tmp_path_factory.mktemp("indexed")
    base, queries = planted(ROWS, DIM)
    base *= np.exp(0.3 * np.random.default_rng(3).standard_normal((ROWS, 1))).astype(np.float32)
    squares = (base.astype(np.float64) ** 2).sum(axis=1, keepdims=True) * NORM_SCALE
    stored = np.hstack([base, squares]).astype(np.float32)
    with filled(folder, stored) as store:
        assert store.build_index(request.param) == [0]
        yield Indexed(folder, store, request.param, stored, queries)


def test_few_bytes_find_nearly_all_of_the_best(indexed: Indexed) -> None:
    store, codes, stored = indexed.store, indexed.codes, indexed.stored
    queries = np.hstack([indexed.queries, np.zeros((len(indexed.queries), 1), np.float32)])
    (index,) = indexes(store)
    assert index.index_type == KINDS[codes.kind]
    assert index.size_bytes / ROWS < MOST_BYTES[codes.kind]
    assert recall(store, 0, stored, queries, 10) >= 0.9
    assert recall(store, 0, stored, queries, 300) >= 0.9
    assert recall(store, 0, stored, queries, 10, np.arange(0, ROWS, 7)) == 1.0
    assert len(store.search({0: queries[:1]}, ROWS + 5)[0]) == ROWS
    # Scores are those of the vectors, and vectors as they were written, to the last bit.
    truth = queries.astype(np.float64) @ stored.T.astype(np.float64)
    for number, hits in enumerate(store.search({0: queries}, 20)):
        chosen = hits.ids.to_numpy()
        bound = (DIM + 1) * 2.0**-23 * np.abs(queries[number]) @ np.abs(stored[chosen].T)
        assert (np.abs(hits.scores - truth[number, chosen]) <= bound).all()
    (rows,) = store.fetch(range(0, ROWS, 9))
    np.testing.assert_array_equal(rows.vectors, stored[rows.ids.to_numpy()])
    with open_store(store.address) as again:
        assert isinstance(again, LanceStore)
        assert codes_of(again._table(0)) == codes
        assert recall(again, 0, stored, queries, 10) >= 0.9


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_every_metric_is_exact_in_scores_and_finds_nearly_all(
    indexed: Indexed, metric: str
) -> None:
    whole = indexed.stored[:, :DIM].astype(np.float64)
    asked = indexed.queries.astype(np.float64)
    squares = (whole**2).sum(axis=1)
    products, lengths = asked @ whole.T, np.linalg.norm(asked, axis=1)[:, None]
    truth = {
        "ip": products,
        "l2": 2 * products - squares - lengths**2,
        "cosine": products / lengths / np.sqrt(squares),
    }[metric]
    search = {"ip": by_inner_product, "l2": by_distance, "cosine": by_cosine}[metric]
    maps = VersionMaps(cast(Any, SimpleNamespace(chain=Chain([], DIM))))
    field = Field(indexed.store, maps, version=0, target=0, dim=DIM, width=DIM + 1)
    found = 0
    for hits, row in zip(search([field], indexed.queries, 10, None), truth, strict=True):
        np.testing.assert_allclose(hits.scores, row[hits.ids.to_numpy()], rtol=1e-4)
        found += len(np.intersect1d(hits.ids.to_numpy(), np.argsort(-row)[:10]))
    assert found / (10 * len(asked)) >= 0.9


def test_rows_that_are_gone_or_new_are_as_in_the_oracle(indexed: Indexed, tmp_path: Path) -> None:
    stored = indexed.stored
    queries = np.hstack([indexed.queries[:2], np.zeros((2, 1), np.float32)])
    oracle = DictionaryStore()
    oracle.load(Space(0, DIM + 1, "sha256:0"), [block(range(ROWS), stored)])
    shutil.copytree(indexed.folder, tmp_path / "copy")
    with LanceStore.open(f"lance:{tmp_path}/copy/lance#emb", "int64") as store:
        gone = np.argsort(-(queries[0] @ stored.T))[:5].tolist()
        for each in (store, oracle):
            each.delete(gone[:3])
            each.upsert(block([gone[3], ROWS], np.stack([queries[0], queries[0] * 9])))
        for _ in range(2):
            hits, truth = (each.search({0: queries[:1]}, 3)[0] for each in (store, oracle))
            assert hits.ids.to_pylist() == truth.ids.to_pylist()
            assert not set(gone[:3]) & set(hits.ids.to_pylist())
            same_hits(store, oracle, {0: queries}, ROWS)
            # Once LanceDB has added the rows to the index: a value that is larger than all from
            # which bytes were made is cut off there.
            store._table(0).optimize()
            assert store._table(0).index_stats(indexes(store)[0].name).num_unindexed_rows == 0


def test_other_codes_replace_the_index_also_that_of_a_killed_builder(tmp_path: Path) -> None:
    vectors, queries = planted(1_500, 32)
    with filled(tmp_path, vectors) as store, open_store(store.address) as other:
        assert codes_of(store._table(0)) == FLOAT32
        for codes in (FLOAT32, IndexCodes("binary", 16), IndexCodes("int8", 4), FLOAT32):
            assert store.build_index(codes) == [0]
            assert [one.index_type for one in indexes(store)] == [KINDS[codes.kind]]
            # Another process sees it, and a view of one moment keeps it.
            assert isinstance(other, LanceStore)
            assert codes_of(other._table(0)) == codes
            assert recall(other, 0, vectors, queries, 10) >= 0.9
            best = store.read_consistently(lambda view: view.search({0: queries[:1]}, 3))
            assert best[0].ids.to_pylist() == store.search({0: queries[:1]}, 3)[0].ids.to_pylist()
        config = lancedb.index.IvfSq(distance_type="dot", num_partitions=63)
        store._table(0).create_index("vector", config=config, name="vector_int8_3")
        assert len(indexes(store)) == 2
        assert recall(store, 0, vectors, queries, 10) >= 0.9
        store.build_index(IndexCodes("int8", 5))
        assert [one.name for one in indexes(store)] == ["vector_int8_5"]


def test_a_query_that_codes_do_not_answer_is_compared_with_all_rows(tmp_path: Path) -> None:
    """A squared length behind a vector decides a distance, and bytes of all coordinates have the
    same bounds."""
    base, queries = planted(1_500, 32)
    base *= np.exp(0.4 * np.random.default_rng(3).standard_normal((1_500, 1))).astype(np.float32)
    lengths = (base**2).sum(axis=1, keepdims=True) / 1024
    vectors = np.hstack([base, lengths]).astype(np.float32)
    distances = np.hstack([queries, np.full((len(queries), 1), -512, np.float32)])
    codes = IndexCodes("int8", 1)
    with filled(tmp_path, vectors) as store:
        store.build_index(codes)
        table = store._table(0)
        answers = [lance_index._by_codes(table, query, 10, codes, 1_500, 64) for query in distances]
        assert all(answer is None for answer in answers)
        assert recall(store, 0, vectors, distances, 10) == 1.0


def test_codes_that_find_too_few_are_refused_and_the_index_is_the_one_before(
    tmp_path: Path,
) -> None:
    # Without clusters, and with few dims, signs tell nothing apart.
    vectors = np.random.default_rng(0).standard_normal((1_500, 8)).astype(np.float32)
    with filled(tmp_path, vectors) as store:
        store.build_index(IndexCodes("int8", 8))
        with pytest.raises(DataError, match=r"binary with oversample 1 finds \d+%"):
            store.build_index(IndexCodes("binary", 1))
        assert codes_of(store._table(0)) == IndexCodes("int8", 8)
        assert [one.index_type for one in indexes(store)] == ["IvfSq"]
        store.upsert(block([1_500], vectors[:1] * 50))
        assert store.search({0: vectors[:1]}, 1)[0].ids.to_pylist() == [1_500]
        # Bytes have the same bounds in all coordinates, so one that is far larger loses the others.
        vectors[:, 0] *= 1e-4
        vectors[:, 1] += 1e5
        store.upsert(block(range(1_500), vectors))
        with pytest.raises(DataError, match="int8 with oversample 4 finds"):
            store.build_index(IndexCodes("int8", 4))


def test_rows_with_the_same_vector_are_as_good_as_one_another(tmp_path: Path) -> None:
    vectors = np.repeat(planted(30, 8)[0], 50, axis=0)
    with filled(tmp_path, vectors) as store:
        assert store.build_index(IndexCodes("int8", 4)) == [0]
        (hits,) = store.search({0: vectors[:1]}, 60)
        assert len(set(hits.ids.to_pylist())) == 60


def test_codes_that_lancedb_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = planted(1_200, 12)
    with filled(tmp_path, vectors[:999]) as store:
        # A small space has no index, so its length is no reason to refuse.
        assert store.build_index(IndexCodes("binary", 4)) == []
        store.upsert(block(range(1_200), vectors))
        with pytest.raises(DataError, match="12 numbers"):
            store.build_index(IndexCodes("binary", 2))
        monkeypatch.delattr(lancedb.index, "IvfSq")
        with pytest.raises(DataError, match=r"pip install --upgrade lancedb"):
            store.build_index(IndexCodes("int8", 2))
        assert indexes(store) == []
    assert {kind: form.config for kind, form in FORMS.items()} == KINDS
