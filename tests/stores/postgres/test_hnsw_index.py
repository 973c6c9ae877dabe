"""The native index of a version: built once, anew if it is broken, and nearly exact."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.support.planted import planted, recall
from tests.support.postgres_rows import NAMES, rows
from tests.support.postgres_server import PostgresServer

from evergram.stores.postgres.pgvector_store import PgvectorStore
from evergram.stores.store import Rows, Space


def test_hnsw_finds_nearly_all_of_the_best(server: PostgresServer) -> None:
    name = next(NAMES)
    with PgvectorStore.open(server.address(name), "int64") as store:
        vectors, queries = planted()
        store.add_space(Space(2, 32, "sha256:two"))
        store.upsert(Rows(2, pa.array(np.arange(len(vectors))), vectors))
        store.build_index()
        store.build_index()
        plan = server.sql(
            "explain select id from store_vectors where version = 2 order by"
            f" vector::vector(32) <#> '{queries[0].tolist()}'::vector(32) limit 10".replace(
                "store_vectors", f"{name}_vectors"
            )
        )
        assert f"{name}_v2_hnsw" in str(plan)
        assert recall(store, 2, vectors, queries, 10) >= 0.9
        # More than hnsw.ef_search, and more than there are.
        assert recall(store, 2, vectors, queries, 300) >= 0.9
        assert len(store.search({2: queries[:1]}, 6000)[0]) == len(vectors)
        few = np.arange(0, len(vectors), 50)
        assert recall(store, 2, vectors, queries, 10, few) == 1.0


def test_many_ids_as_a_filter_of_the_index(
    store: PgvectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.postgres.pgvector_store.LOOKED_UP", 100)
    vectors, queries = planted()
    store.add_space(Space(1, 32, "sha256:one"))
    store.upsert(Rows(1, pa.array(np.arange(len(vectors))), vectors))
    store.build_index()
    # A tenth, and the opposite of what the queries look for.
    assert recall(store, 1, vectors, queries, 10, np.arange(0, len(vectors), 10)) >= 0.9
    far = np.argsort(queries[0] @ vectors.T)[:120]
    assert recall(store, 1, vectors, queries[:1], 10, far) == 1.0


def test_vectors_too_long_for_an_index_are_searched_exactly(
    store: PgvectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.postgres.pgvector_store.INDEXED_FROM", 10)
    vectors = np.random.default_rng(0).normal(size=(20, 2001)).astype(np.float32)
    store.add_space(Space(1, 2001, "sha256:one"))
    store.upsert(Rows(1, pa.array(np.arange(20)), vectors))
    store.build_index()
    assert recall(store, 1, vectors, vectors[:3], 5) == 1.0


def test_an_unfinished_index_is_built_anew(server: PostgresServer, store: PgvectorStore) -> None:
    store.upsert(rows(range(1200)))
    store.build_index()
    name = store.address.rpartition("#")[2]
    index = f"{name}_v0_hnsw"
    state = f"select indisvalid from pg_index where indexrelid = '{index}'::regclass"
    server.sql(f"update pg_index set indisvalid = false where indexrelid = '{index}'::regclass")
    assert server.sql(state) == [(False,)]
    store.build_index()
    assert server.sql(state) == [(True,)]
