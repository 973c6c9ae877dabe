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


def test_an_index_of_halves_chooses_and_whole_vectors_score(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(NAMES)
    with PgvectorStore.open(server.address(name), "int64") as store:
        vectors, queries = planted()
        store.add_space(Space(2, 32, "sha256:two"))
        store.upsert(Rows(2, pa.array(np.arange(len(vectors))), vectors))
        store.build_index()
        indexes = f"select indexname from pg_indexes where tablename = '{name}_vectors'"
        assert (f"{name}_v2_hnsw",) in server.sql(indexes)
        assert store.build_index(IndexCodes("float16", 3)) == [2]
        names = {one for (one,) in server.sql(indexes)}
        assert f"{name}_v2_hnsw_float16" in names
        assert f"{name}_v2_hnsw" not in names
        server.sql(f"analyze {name}_vectors")
        # The plan of the very statement that a search sends.
        asked: list[str] = []
        run = store._run

        def explained(query: Composed, values: list[object] | None = None) -> list[object]:
            asked.extend(str(row) for row in run(SQL("explain ") + query, values))
            return run(query, values)

        monkeypatch.setattr(store, "_run", explained)
        store.read_consistently(lambda view: view.search({2: queries[:1]}, 10))
        store.search({2: queries[:1]}, 10)
        monkeypatch.undo()
        assert f"{name}_v2_hnsw_float16" in str(asked)
        assert recall(store, 2, vectors, queries, 10) >= 0.9
        # Its order is that of a query of any length; and what is written later is found.
        long = queries * np.float32(1e6)
        assert recall(store, 2, vectors, queries, 300) >= 0.9
        hits = store.search({2: long}, 10)
        assert [h.ids.to_pylist() for h in hits] == [
            h.ids.to_pylist() for h in store.search({2: queries}, 10)
        ]
        store.upsert(Rows(2, pa.array([10**6]), queries[:1] * 9))
        assert store.search({2: queries[:1]}, 1)[0].ids.to_pylist() == [10**6]
        store.delete([10**6])
        with pytest.raises(
            DataError, match=r"cannot hold a value: .*out of range for type halfvec"
        ):
            store.upsert(Rows(2, pa.array([7]), np.full((1, 32), 7e4, np.float32)))
        assert store.build_index() == [2]
        names = {one for (one,) in server.sql(indexes)}
        assert f"{name}_v2_hnsw" in names
        assert f"{name}_v2_hnsw_float16" not in names
        assert recall(store, 2, vectors, queries, 10) >= 0.9


def test_halves_of_longer_vectors_are_indexed(
    store: PgvectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.postgres.pgvector_store.INDEXED_FROM", 10)
    draw = np.random.default_rng(0)
    for version, dim in ((1, 4000), (2, 4001)):
        vectors = draw.normal(size=(20, dim)).astype(np.float32)
        store.add_space(Space(version, dim, f"sha256:{version}"))
        store.upsert(Rows(version, pa.array(np.arange(20) + 20 * version), vectors))
    assert store.build_index() == []
    assert store.build_index(IndexCodes("float16", 4)) == [1]


def test_an_index_whose_comment_was_not_written_is_not_used_and_is_mended(
    server: PostgresServer, store: PgvectorStore
) -> None:
    """A builder was killed between the two."""
    store.upsert(rows(range(1200)))
    store.build_index(IndexCodes("float16", 5))
    name = store.address.rpartition("#")[2]
    assert store._oversample(0) == 5
    server.sql(f"comment on index {name}_v0_hnsw_float16 is null")
    assert store._oversample(0) is None
    assert len(store.search({0: np.ones((1, 4), np.float32)}, 3)[0]) == 3
    store.build_index(IndexCodes("float16", 6))
    assert store._oversample(0) == 6
