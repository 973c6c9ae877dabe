"""LanceDB's indexes of fewer bytes: they choose rows, whole vectors score, and all else is as it
was."""

from __future__ import annotations

import sys
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

ROWS, DIM = 4_000, 32
CODED = [IndexCodes("int8", 4), IndexCodes("binary", 16)]
KINDS = {"float32": "IvfFlat", "int8": "IvfSq", "binary": "IvfRq"}
# Lists of whole vectors take 4 bytes a coordinate, and each row's place and list are beside it.
MOST_BYTES = {"int8": DIM + 8, "binary": DIM / 8 + 20}


def filled(folder: Path, vectors: Floats) -> LanceStore:
    store = LanceStore.open(f"lance:{folder}/lance#emb", "int64")
    store.load(Space(0, vectors.shape[1], "sha256:0"), [block(range(len(vectors)), vectors)])
    return store


def block(ids: Any, vectors: Floats) -> Rows:
    return Rows(0, pa.array(ids, pa.int64()), vectors)


def indexes(store: LanceStore) -> list[Any]:
    return [one for one in store._table(0).list_indices() if list(one.columns) == ["vector"]]


@pytest.mark.parametrize("codes", CODED, ids=lambda codes: codes.kind)
def test_few_bytes_find_nearly_all_of_the_best(tmp_path: Path, codes: IndexCodes) -> None:
    vectors, queries = planted(ROWS, DIM)
    with filled(tmp_path, vectors) as store:
        assert store.build_index(codes) == [0]
        (index,) = indexes(store)
        assert index.index_type == KINDS[codes.kind]
        assert index.size_bytes / ROWS < MOST_BYTES[codes.kind]
        # `recall` compares every score with the product of the vectors themselves.
        assert recall(store, 0, vectors, queries, 10) >= 0.9
        assert recall(store, 0, vectors, queries, 300) >= 0.9
        assert recall(store, 0, vectors, queries, 10, np.arange(0, ROWS, 7)) == 1.0
        assert len(store.search({0: queries[:1]}, ROWS + 5)[0]) == ROWS
        # Stored vectors are as they were written, to the last bit.
        (rows,) = store.fetch(range(0, ROWS, 9))
        np.testing.assert_array_equal(rows.vectors, vectors[rows.ids.to_numpy()])
        with open_store(store.address) as again:
            assert isinstance(again, LanceStore)
            assert codes_of(again._table(0)) == codes
            assert recall(again, 0, vectors, queries, 10) >= 0.9


@pytest.mark.parametrize("codes", CODED, ids=lambda codes: codes.kind)
def test_scores_are_those_of_the_vectors(tmp_path: Path, codes: IndexCodes) -> None:
    vectors, queries = planted(ROWS, DIM)
    truth = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    with filled(tmp_path, vectors) as store:
        store.build_index(codes)
        for number, hits in enumerate(store.search({0: queries}, 20)):
            exact = truth[number, hits.ids.to_numpy()]
            bound = DIM * 2.0**-23 * np.abs(queries[number]) @ np.abs(vectors.T)
            assert (np.abs(hits.scores - exact) <= bound[hits.ids.to_numpy()]).all()


@pytest.mark.parametrize("codes", CODED, ids=lambda codes: codes.kind)
@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_every_metric_is_exact_in_scores_and_finds_nearly_all(
    tmp_path: Path, codes: IndexCodes, metric: str
) -> None:
    """Rows as a lineage stores them, with their squared lengths, which some metrics weigh most."""
    dim = DIM - 1 if codes.kind == "binary" else DIM
    base, queries = planted(ROWS, dim)
    base *= np.exp(0.3 * np.random.default_rng(3).standard_normal((ROWS, 1))).astype(np.float32)
    whole, asked = base.astype(np.float64), queries.astype(np.float64)
    squares = (whole**2).sum(axis=1)
    stored = np.hstack([whole, squares[:, None] * NORM_SCALE]).astype(np.float32)
    products, lengths = asked @ whole.T, np.linalg.norm(asked, axis=1)[:, None]
    truth = {
        "ip": products,
        "l2": 2 * products - squares - lengths**2,
        "cosine": products / lengths / np.sqrt(squares),
    }[metric]
    search = {"ip": by_inner_product, "l2": by_distance, "cosine": by_cosine}[metric]
    maps = VersionMaps(cast(Any, SimpleNamespace(chain=Chain([], dim))))
    with filled(tmp_path, stored) as store:
        store.build_index(codes)
        field = Field(store, maps, version=0, target=0, dim=dim, width=dim + 1)
        results = search([field], queries, 10, None)
    found = 0
    for hits, row in zip(results, truth, strict=True):
        np.testing.assert_allclose(hits.scores, row[hits.ids.to_numpy()], rtol=1e-4)
        found += len(np.intersect1d(hits.ids.to_numpy(), np.argsort(-row)[:10]))
    assert found / (10 * len(queries)) >= 0.9


def test_one_coordinate_that_is_far_larger_is_refused(tmp_path: Path) -> None:
    """LanceDB's bytes have the same bounds in all coordinates, so the others would be lost."""
    vectors, _ = planted(ROWS, DIM)
    vectors[:, 0] *= 1e-4
    vectors[:, 1] += 1e5
    with filled(tmp_path, vectors) as store:
        with pytest.raises(DataError, match=r"int8 with oversample 4 finds .* of the ten best"):
            store.build_index(IndexCodes("int8", 4))
        assert indexes(store) == []


@pytest.mark.parametrize("codes", CODED, ids=lambda codes: codes.kind)
def test_rows_that_are_gone_or_new_are_as_in_the_oracle(tmp_path: Path, codes: IndexCodes) -> None:
    vectors, queries = planted(ROWS, DIM)
    oracle = DictionaryStore()
    oracle.load(Space(0, DIM, "sha256:0"), [block(range(ROWS), vectors)])
    with filled(tmp_path, vectors) as store:
        store.build_index(codes)
        gone = np.argsort(-(queries[0] @ vectors.T))[:5].tolist()
        for each in (store, oracle):
            each.delete(gone[:3])
            each.upsert(block([gone[3], ROWS], np.stack([queries[0], queries[0] * 9])))
        for _ in range(2):
            hits, truth = (each.search({0: queries[:1]}, 3)[0] for each in (store, oracle))
            assert hits.ids.to_pylist() == truth.ids.to_pylist()
            assert not set(gone[:3]) & set(hits.ids.to_pylist())
            same_hits(store, oracle, {0: queries[:2]}, ROWS)
            # Once LanceDB has added the rows to the index: a value that is larger than all from
            # which bytes were made is cut off there.
            store._table(0).optimize()
            assert store._table(0).index_stats(indexes(store)[0].name).num_unindexed_rows == 0


def test_whole_vectors_again_and_other_codes_replace_the_index(tmp_path: Path) -> None:
    vectors, queries = planted(ROWS, DIM)
    with filled(tmp_path, vectors) as store, open_store(store.address) as other:
        assert codes_of(store._table(0)) == FLOAT32
        for codes in (FLOAT32, *CODED, IndexCodes("int8", 1), FLOAT32):
            assert store.build_index(codes) == [0]
            assert [one.index_type for one in indexes(store)] == [KINDS[codes.kind]]
            # Another process sees it, and a view of one moment keeps it.
            assert isinstance(other, LanceStore)
            assert codes_of(other._table(0)) == codes
            assert recall(other, 0, vectors, queries, 10) >= 0.9
            best = store.read_consistently(lambda view: view.search({0: queries[:1]}, 3))
            assert best[0].ids.to_pylist() == store.search({0: queries[:1]}, 3)[0].ids.to_pylist()


def test_a_builder_that_was_killed_between_two_indexes(tmp_path: Path) -> None:
    vectors, queries = planted(ROWS, DIM)
    with filled(tmp_path, vectors) as store:
        store.build_index()
        config = lancedb.index.IvfSq(distance_type="dot", num_partitions=63)
        store._table(0).create_index("vector", config=config, name="vector_int8_3")
        assert len(indexes(store)) == 2
        assert recall(store, 0, vectors, queries, 10) >= 0.9
        store.build_index(IndexCodes("int8", 5))
        assert [one.name for one in indexes(store)] == ["vector_int8_5"]


def test_a_query_that_codes_do_not_answer_is_compared_with_all_rows(tmp_path: Path) -> None:
    """A squared length behind a vector decides a distance, and bytes of all coordinates have the
    same bounds."""
    base, queries = planted(ROWS, DIM)
    base *= np.exp(0.4 * np.random.default_rng(3).standard_normal((ROWS, 1))).astype(np.float32)
    lengths = (base**2).sum(axis=1, keepdims=True) / 1024
    vectors = np.hstack([base, lengths]).astype(np.float32)
    distances = np.hstack([queries, np.full((len(queries), 1), -512, np.float32)])
    with filled(tmp_path, vectors) as store:
        store.build_index(IndexCodes("int8", 1))
        table, codes = store._table(0), IndexCodes("int8", 1)
        answers = [lance_index._by_codes(table, query, 10, codes, ROWS, 64) for query in distances]
        assert all(answer is None for answer in answers)
        assert recall(store, 0, vectors, distances, 10) == 1.0


def test_codes_that_find_too_few_are_refused_and_the_index_is_the_one_before(
    tmp_path: Path,
) -> None:
    # Without clusters, and with few dims, signs tell nothing apart.
    vectors = np.random.default_rng(0).standard_normal((ROWS, 8)).astype(np.float32)
    with filled(tmp_path, vectors) as store:
        store.build_index(IndexCodes("int8", 8))
        with pytest.raises(DataError, match=r"binary with oversample 1 finds \d+% of the ten best"):
            store.build_index(IndexCodes("binary", 1))
        assert codes_of(store._table(0)) == IndexCodes("int8", 8)
        assert [one.index_type for one in indexes(store)] == ["IvfSq"]
        store.upsert(block([ROWS], vectors[:1] * 50))
        assert store.search({0: vectors[:1]}, 1)[0].ids.to_pylist() == [ROWS]


def test_rows_with_the_same_vector_are_as_good_as_one_another(tmp_path: Path) -> None:
    vectors = np.repeat(planted(40, 8)[0], 50, axis=0)
    with filled(tmp_path, vectors) as store:
        assert store.build_index(IndexCodes("int8", 4)) == [0]
        (hits,) = store.search({0: vectors[:1]}, 60)
        assert len(set(hits.ids.to_pylist())) == 60


def test_codes_that_lancedb_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = planted(1_200, 12)
    with filled(tmp_path, vectors) as store:
        with pytest.raises(DataError, match=r"float16; its kinds are float32, int8, binary"):
            store.build_index(IndexCodes("float16", 2))
        words = r"version 0 in lance:.* have 12 numbers, .* of a multiple of 8 only; take int8"
        with pytest.raises(DataError, match=words):
            store.build_index(IndexCodes("binary", 2))
        monkeypatch.delattr(lancedb.index, "IvfSq")
        with pytest.raises(DataError, match=r"no index of int8: pip install --upgrade lancedb"):
            store.build_index(IndexCodes("int8", 2))
        assert indexes(store) == []


def test_a_small_space_has_no_index(tmp_path: Path) -> None:
    with filled(tmp_path, planted(999, 12)[0]) as store:
        # Nor is its length a reason to refuse.
        assert store.build_index(IndexCodes("binary", 4)) == []
        assert indexes(store) == []


def test_every_form_is_one_of_lancedb() -> None:
    assert {kind: form.config for kind, form in FORMS.items()} == KINDS
    assert "lancedb" in sys.modules
