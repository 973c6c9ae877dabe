"""Indexes of whole vectors and of codes, alike in every store that has some: nearly all of the best
are found, scores are those of the vectors, and a query that codes do not answer is searched without
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import same_hits, scores_of
from tests.support.dictionary_store import DictionaryStore
from tests.support.planted import planted, recall
from tests.support.store_kinds import STORES

from evergram.compatibility.chain import Chain
from evergram.errors import DataError
from evergram.retrieval.metric_search import Field, by_cosine, by_distance, by_inner_product
from evergram.retrieval.version_maps import NORM_SCALE, VersionMaps
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Floats, Rows, Space, Store

ROWS, DIM = 4_000, 31
CODES = {
    "snapshot": [FLOAT32, *(IndexCodes(*c) for c in (("float16", 2), ("int8", 4), ("binary", 16)))],
    "lance": [FLOAT32, IndexCodes("int8", 4), IndexCodes("binary", 16)],
    "pgvector": [FLOAT32, IndexCodes("float16", 3)],
}
EACH = [(kind, codes) for kind, several in CODES.items() for codes in several]


def opened(kind: str, folder: Path) -> Store:
    store = STORES[kind](folder, "int64")
    if kind == "snapshot":
        store.close()
        return SnapshotStore(folder / "snapshot", index_from=1_000)
    return store


def filled(kind: str, folder: Path, vectors: Floats) -> Store:
    store = opened(kind, folder)
    store.load(Space(0, vectors.shape[1], "sha256:0"), [block(range(len(vectors)), vectors)])
    return store


def block(ids: Any, vectors: Floats) -> Rows:
    return Rows(0, pa.array(ids, pa.int64()), vectors)


def lengthened(vectors: Floats, queries: Floats) -> tuple[Floats, Floats]:
    """Rows as a lineage stores them, behind which are their squared lengths, and queries for them
    by inner product."""
    squares = (vectors.astype(np.float64) ** 2).sum(axis=1, keepdims=True) * NORM_SCALE
    stored = np.hstack([vectors, squares]).astype(np.float32)
    return stored, np.hstack([queries, np.zeros((len(queries), 1), np.float32)])


@dataclass(frozen=True)
class Indexed:
    kind: str
    folder: Path
    store: Store
    codes: IndexCodes
    stored: Floats
    queries: Floats


@pytest.fixture(scope="module", params=EACH, ids=lambda one: f"{one[0]}-{one[1].kind}")
def indexed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Indexed]:
    kind, codes = request.param
    folder = tmp_path_factory.mktemp("indexed")
    base, queries = planted(ROWS, DIM)
    base *= np.exp(0.3 * np.random.default_rng(3).standard_normal((ROWS, 1))).astype(np.float32)
    stored, asked = lengthened(base, queries)
    with filled(kind, folder, stored) as store:
        assert store.build_index(codes) == [0]
        yield Indexed(kind, folder, store, codes, stored, asked)


def test_few_bytes_find_nearly_all_of_the_best(indexed: Indexed) -> None:
    store, stored, queries = indexed.store, indexed.stored, indexed.queries
    if indexed.kind != "pgvector":
        # A row's place and list are beside its code, and the centres beside all.
        most = {"float32": 8 * 32, "float16": 2 * 32, "int8": 32, "binary": 32 / 8}
        pattern = {"snapshot": "*.faiss", "lance": "_indices/*/auxiliary.idx"}[indexed.kind]
        size = sum(path.stat().st_size for path in indexed.folder.rglob(pattern))
        assert 0 < size / ROWS < most[indexed.codes.kind] + 36
    # `recall` compares every score with the product of the vectors themselves.
    assert recall(store, 0, stored, queries, 10) >= 0.9
    assert recall(store, 0, stored, queries[:10], 300) >= 0.9
    assert recall(store, 0, stored, queries, 10, np.arange(0, ROWS, 7)) == 1.0
    assert len(store.search({0: queries[:1]}, ROWS + 5)[0]) == ROWS
    (rows,) = store.fetch(range(0, ROWS, 9))
    np.testing.assert_array_equal(rows.vectors, stored[rows.ids.to_numpy()])
    with opened(indexed.kind, indexed.folder) as again:
        assert recall(again, 0, stored, queries[:10], 10) >= 0.9
        if indexed.codes is not FLOAT32:
            # A past version's queries: those of one coordinate are far from every cluster.
            far: Floats = 1e-3 * np.eye(DIM + 1, dtype=np.float32)[:DIM]
            assert recall(again, 0, stored, np.vstack([far, -far]), 10) >= 0.9


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_every_metric_is_exact_in_scores_and_finds_nearly_all(
    indexed: Indexed, metric: str
) -> None:
    asked = indexed.queries[:, :DIM]
    truth = scores_of(metric, asked, indexed.stored[:, :DIM])
    search = {"ip": by_inner_product, "l2": by_distance, "cosine": by_cosine}[metric]
    maps = VersionMaps(cast(Any, SimpleNamespace(chain=Chain([], DIM))))
    field = Field(indexed.store, maps, version=0, target=0, dim=DIM, width=DIM + 1)
    found = 0
    for hits, row in zip(search([field], asked, 10, None), truth, strict=True):
        np.testing.assert_allclose(hits.scores, row[hits.ids.to_numpy()], rtol=1e-4)
        found += len(np.intersect1d(hits.ids.to_numpy(), np.argsort(-row)[:10]))
    assert found / (10 * len(asked)) >= 0.9


def test_rows_that_are_gone_or_new_are_as_in_the_oracle(indexed: Indexed) -> None:
    store, stored, queries = indexed.store, indexed.stored, indexed.queries
    oracle = DictionaryStore()
    oracle.load(Space(0, DIM + 1, "sha256:0"), [block(range(ROWS), stored)])
    gone = np.argsort(-(queries[0] @ stored.T))[:4]
    for each in (store, oracle):
        each.delete(gone[:3].tolist())
        each.upsert(block([gone[3], ROWS], np.stack([queries[0], queries[0] * 9])))
    hits, truth = (each.search({0: queries[:1]}, 3)[0] for each in (store, oracle))
    assert hits.ids.to_pylist() == truth.ids.to_pylist()
    same_hits(store, oracle, {0: queries[:1]}, ROWS)
    same_hits(store, oracle, {0: queries[:2]}, 10, ids=list(range(0, ROWS, 7)))
    store.delete([ROWS])
    store.upsert(block(gone, stored[gone]))


@pytest.mark.parametrize("kind", CODES)
def test_other_codes_replace_the_index_and_those_that_find_too_few_do_not(
    kind: str, tmp_path: Path
) -> None:
    vectors, queries = planted(1_500, 32)
    with filled(kind, tmp_path, vectors) as store, opened(kind, tmp_path) as other:
        for codes in (*CODES[kind], FLOAT32):
            other.search({0: queries[:1]}, 3)
            assert store.build_index(codes) == [0]
            # Another process sees it, and a view of one moment keeps it.
            assert recall(other, 0, vectors, queries, 10) >= 0.9
            best = store.read_consistently(lambda view: view.search({0: queries[:1]}, 3))
            assert best[0].ids.equals(store.search({0: queries[:1]}, 3)[0].ids)
    if kind == "pgvector":
        return
    # Without clusters, and with few dims, signs tell nothing apart.
    vectors = np.random.default_rng(0).standard_normal((1_500, 8)).astype(np.float32)
    with filled(kind, tmp_path / "8", vectors) as store:
        store.build_index(IndexCodes("int8", 8))
        before = sorted(path.name for path in tmp_path.rglob("*.faiss"))
        with pytest.raises(DataError, match=r"binary with oversample 1 finds \d+%"):
            store.build_index(IndexCodes("binary", 1))
        assert sorted(path.name for path in tmp_path.rglob("*.faiss")) == before
        assert recall(store, 0, vectors, vectors[:20], 10) >= 0.9


@pytest.mark.parametrize(
    ("kind", "codes", "module"),
    [
        ("snapshot", IndexCodes("binary", 8), "snapshot.faiss_index"),
        ("lance", IndexCodes("int8", 1), "lance.lance_index"),
    ],
)
def test_a_query_that_codes_do_not_answer_is_compared_with_all_rows(
    kind: str, codes: IndexCodes, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A squared length behind a vector decides a distance, and is far from the other values."""
    base, queries = planted(ROWS, 32)
    base *= np.exp(0.4 * np.random.default_rng(3).standard_normal((ROWS, 1))).astype(np.float32)
    lengths = (base**2).sum(axis=1, keepdims=True) / 1024
    vectors = np.hstack([base, lengths]).astype(np.float32)
    distances = np.hstack([queries, np.full((len(queries), 1), -512, np.float32)])
    with filled(kind, tmp_path, vectors) as store:
        store.build_index(codes)
        assert recall(store, 0, vectors, distances, 10) == 1.0
        monkeypatch.setattr(f"evergram.stores.{module}.tell_apart", lambda *_: True)
        assert recall(store, 0, vectors, distances, 10) < 0.9
