"""The native index of a version: built once, anew if it is broken, and nearly exact."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from psycopg.sql import SQL, Composed
from tests.support.planted import planted, recall
from tests.support.postgres_rows import NAMES, rows
from tests.support.postgres_server import PostgresServer

from evergram.compatibility.chain import Chain
from evergram.errors import DataError
from evergram.retrieval.metric_search import Field, by_distance
from evergram.retrieval.version_maps import NORM_SCALE, VersionMaps
from evergram.stores.index_codes import IndexCodes
from evergram.stores.postgres.pgvector_store import PgvectorStore
from evergram.stores.store import Rows, Space


def indexes(server: PostgresServer, name: str) -> set[object]:
    query = f"select indexname from pg_indexes where tablename = '{name}_vectors'"
    return {one for (one,) in server.sql(query)}


def test_hnsw_finds_nearly_all_of_the_best_also_by_halves(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(NAMES)
    with PgvectorStore.open(server.address(name), "int64") as store:
        vectors, queries = planted()
        store.add_space(Space(2, 32, "sha256:two"))
        store.upsert(Rows(2, pa.array(np.arange(len(vectors))), vectors))
        assert store.build_index() == [2]
        store.build_index()
        plan = server.sql(
            f"explain select id from {name}_vectors where version = 2 order by"
            f" vector::vector(32) <#> '{queries[0].tolist()}'::vector(32) limit 10"
        )
        assert f"{name}_v2_hnsw" in str(plan)
        assert recall(store, 2, vectors, queries, 10) >= 0.9
        # More than hnsw.ef_search, and more than there are.
        assert recall(store, 2, vectors, queries, 300) >= 0.9
        assert len(store.search({2: queries[:1]}, 6000)[0]) == len(vectors)
        few = np.arange(0, len(vectors), 50)
        assert recall(store, 2, vectors, queries, 10, few) == 1.0
        with monkeypatch.context() as during:
            # Many ids are a filter of the index: a tenth, and the opposite of a query.
            during.setattr("evergram.stores.postgres.pgvector_store.LOOKED_UP", 100)
            assert recall(store, 2, vectors, queries, 10, np.arange(0, len(vectors), 10)) >= 0.9
            far = np.argsort(queries[0] @ vectors.T)[:120]
            assert recall(store, 2, vectors, queries[:1], 10, far) == 1.0
        assert store.build_index(IndexCodes("float16", 3)) == [2]
        assert f"{name}_v2_hnsw_float16" in indexes(server, name)
        assert f"{name}_v2_hnsw" not in indexes(server, name)
        server.sql(f"analyze {name}_vectors")
        # The plan of the very statement that a search sends.
        asked: list[str] = []
        run = store._run

        def explained(query: Composed, values: list[object] | None = None) -> list[object]:
            asked.extend(str(row) for row in run(SQL("explain ") + query, values))
            return run(query, values)

        with monkeypatch.context() as during:
            during.setattr(store, "_run", explained)
            store.search({2: queries[:1]}, 10)
        assert f"{name}_v2_hnsw_float16" in str(asked)
        assert recall(store, 2, vectors, queries, 10) >= 0.9
        # Its order is that of a query of any length; and what is written later is found.
        plain, long = (store.search({2: queries * np.float32(n)}, 10) for n in (1, 1e6))
        assert [h.ids.to_pylist() for h in long] == [h.ids.to_pylist() for h in plain]
        store.upsert(Rows(2, pa.array([10**6]), queries[:1] * 9))
        assert store.search({2: queries[:1]}, 1)[0].ids.to_pylist() == [10**6]
        store.delete([10**6])
        with pytest.raises(DataError, match="halfvec"):
            store.upsert(Rows(2, pa.array([7]), np.full((1, 32), 7e4, np.float32)))
        assert store.build_index() == [2]
        assert f"{name}_v2_hnsw_float16" not in indexes(server, name)
        assert recall(store, 2, vectors, queries, 10) >= 0.9


def test_a_search_by_distance_is_not_misled_by_the_graph(server: PostgresServer) -> None:
    vectors, queries = planted()
    # Lengths differ as those of popular and of rare objects do.
    lengths = np.random.default_rng(1).lognormal(sigma=1.0, size=(len(vectors), 1))
    vectors = (vectors * lengths).astype(np.float32)
    norms = (vectors.astype(np.float64) ** 2).sum(axis=1, keepdims=True) * NORM_SCALE
    stored = np.concatenate([vectors, norms.astype(np.float32)], axis=1)
    maps = VersionMaps(cast(Any, SimpleNamespace(chain=Chain([], 32))))
    with PgvectorStore.open(server.address(next(NAMES)), "int64") as store:
        store.add_space(Space(0, 33, "sha256:zero"))
        store.upsert(Rows(0, pa.array(np.arange(len(vectors))), stored))
        assert store.build_index() == [0]
        field = Field(store, maps, version=0, target=0, dim=32, width=33)
        asked, offsets = field.linear(2 * queries, -1.0)
        found = {
            "graph": field.search(asked, offsets, 10, None),
            "all rows": field.search(asked, offsets, 10, None, exact=True),
            "by distance": by_distance([field], queries, 10, None),
        }
    distances = ((queries[:, None].astype(np.float64) - vectors[None]) ** 2).sum(axis=2)
    best = [set(np.argsort(row)[:10].tolist()) for row in distances]
    share = {
        name: np.mean(
            [len(b & set(h.ids.to_pylist())) / 10 for b, h in zip(best, hits, strict=True)]
        )
        for name, hits in found.items()
    }
    assert share["all rows"] == share["by distance"] == 1.0
    assert share["graph"] < 0.9  # or there would be no need to compare all rows


def test_vectors_too_long_for_an_index_are_searched_exactly(
    store: PgvectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.postgres.pgvector_store.INDEXED_FROM", 10)
    draw = np.random.default_rng(0)
    for version, dim in ((1, 2001), (2, 4001)):
        vectors = draw.normal(size=(20, dim)).astype(np.float32)
        store.add_space(Space(version, dim, f"sha256:{version}"))
        store.upsert(Rows(version, pa.array(np.arange(20) + 20 * version), vectors))
        if version == 1:
            assert store.build_index() == []
            assert len(store.search({1: vectors[:3]}, 5)) == 3
    assert store.build_index(IndexCodes("float16", 4)) == [1]


def test_an_index_that_a_killed_builder_left_is_built_anew(
    server: PostgresServer, store: PgvectorStore
) -> None:
    store.upsert(rows(range(1200)))
    store.build_index()
    name = store.address.rpartition("#")[2]
    index = f"{name}_v0_hnsw"
    state = f"select indisvalid from pg_index where indexrelid = '{index}'::regclass"
    server.sql(f"update pg_index set indisvalid = false where indexrelid = '{index}'::regclass")
    store.build_index()
    assert server.sql(state) == [(True,)]
    # Killed before the comment, which says how many rows codes choose.
    store.build_index(IndexCodes("float16", 5))
    assert store._oversample(0) == 5
    server.sql(f"comment on index {index}_float16 is null")
    assert store._oversample(0) is None
    assert len(store.search({0: np.ones((1, 4), np.float32)}, 3)[0]) == 3
    store.build_index(IndexCodes("float16", 6))
    assert store._oversample(0) == 6
