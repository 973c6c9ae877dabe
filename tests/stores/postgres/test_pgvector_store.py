"""What is particular to PostgreSQL: it goes away, it asks for a password, it quotes names."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from psycopg.sql import SQL
from tests.support.planted import planted, recall
from tests.support.postgres_server import PostgresServer, postgres
from tests.support.stores_together import work_together

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.postgres.connection import read_address, show_address
from evergram.stores.postgres.pgvector_store import PgvectorStore
from evergram.stores.store import Rows, Space, StoreView

NAMES = (f"store{i}" for i in itertools.count())
A_FEW_SECONDS = 6.0


@pytest.fixture(scope="module")
def server() -> PostgresServer:
    return postgres()


@pytest.fixture
def store(server: PostgresServer) -> Iterator[PgvectorStore]:
    with PgvectorStore.open(server.address(next(NAMES)), "int64") as opened:
        opened.add_space(Space(0, 4, "sha256:zero"))
        yield opened


def rows(ids: range, version: int = 0, dim: int = 4, value: float = 1.0) -> Rows:
    vectors = np.full((len(ids), dim), value, dtype=np.float32)
    return Rows(version, pa.array(ids, pa.int64()), vectors)


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


def test_names_and_ids_are_quoted(server: PostgresServer) -> None:
    name = "Select-From"
    ids = ["it's", 'say "x"', "back\\slash", "%s", "é", "", " ", "a" * 500]
    with PgvectorStore.open(server.address(name), "string") as store:
        store.add_space(Space(0, 2, "sha256:'\"%s"))
        store.upsert(Rows(0, pa.array(ids), np.eye(8, 2, dtype=np.float32)))
        assert store.spaces()[0].fingerprint == "sha256:'\"%s"
        assert sorted(store.fetch(ids)[0].ids.to_pylist()) == sorted(ids)
        store.delete(["it's"])
        assert store.count() == {0: 7}
        with open_store(store.address) as again:
            assert again.count() == {0: 7}
        with pytest.raises(DataError, match="NUL"):
            store.upsert(Rows(0, pa.array(["a\0b"]), np.ones((1, 2), dtype=np.float32)))


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            "postgresql://ann:s%40cret@db.example:5433/vectors?sslmode=require#emb",
            "postgresql://ann@db.example:5433/vectors?sslmode=require#emb",
        ),
        (
            "postgresql://ann:s%40cret@/vectors?host=/run/pg&port=5433&password=secret#emb",
            "postgresql://ann@/vectors?host=%2Frun%2Fpg&port=5433#emb",
        ),
        (
            "postgresql://db/v?options=-c%20work_mem%3D1GB#emb",
            "postgresql://db/v?options=-c%20work_mem%3D1GB#emb",
        ),
        ("postgresql://a:1,b:2/v#emb", "postgresql:///v?host=a%2Cb&port=1%2C2#emb"),
    ],
)
def test_an_address_is_shown_without_its_password(given: str, shown: str) -> None:
    params, name = read_address(given)
    found = show_address(params, name)
    assert found == shown
    without = {k: v for k, v in params.items() if k != "password"}
    assert read_address(found) == (without, name)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ann:secret@db/vectors",
        "postgresql://ann:sec%ret@db/vectors#emb",
        "postgresql://ann:secret/x@db/vectors#emb",
        "postgresql://ann:12#secret@db/vectors#",
        "postgresql:#emb",
    ],
)
def test_a_wrong_address_is_not_repeated(address: str) -> None:
    with pytest.raises(DataError, match="postgresql://USER:PASSWORD@HOST") as caught:
        open_store(address)
    assert "sec" not in str(caught.value)


def test_what_the_address_sets_stays_set(server: PostgresServer) -> None:
    given = "-c%20hnsw.ef_search%3D333%20-c%20statement_timeout%3D7s"
    address = f"{server.uri}&options={given}#{next(NAMES)}"
    asked = ("hnsw.ef_search", "statement_timeout", "hnsw.iterative_scan", "synchronous_commit")
    query = SQL("select array[{}]").format(
        SQL(", ").join(SQL("current_setting({})").format(name) for name in asked)
    )
    with PgvectorStore.open(address, "int64") as store:
        found = store._connections.run(lambda c: c.execute(query).fetchone())
        assert found == (["333", "7s", "relaxed_order", "on"],)


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be the name"):
        open_store('postgresql://ann@db/vectors#a"b')


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with pytest.raises(StoreError, match=r"ann@127\.0\.0\.1:9/vectors#emb can") as caught:
        open_store("postgresql://ann:secret@127.0.0.1:9/vectors#emb")
    assert "secret" not in str(caught.value)


def test_a_store_that_is_not_there_or_has_other_ids(
    server: PostgresServer, store: PgvectorStore
) -> None:
    with pytest.raises(DataError, match="no store"):
        open_store(server.address("nowhere"))
    with pytest.raises(DataError, match="ids of type int64, not string"):
        open_store(store.address, create="string")
    with open_store(store.address, create="int64") as again:
        assert again.spaces() == store.spaces()


def test_without_the_right_to_make_the_extension_the_error_says_what_to_do(
    server: PostgresServer,
) -> None:
    server.sql("create role visitor login")
    server.sql("create database bare owner visitor")
    address = server.uri.replace("postgres:@/postgres", "visitor@/bare")
    with pytest.raises(StoreError, match="create extension vector"):
        open_store(f"{address}#emb", create="int64")


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


def test_a_changed_row_is_noticed(server: PostgresServer, store: PgvectorStore) -> None:
    store.upsert(rows(range(3)))
    name = store.address.rpartition("#")[2]
    server.sql(f"update {name}_vectors set vector = '[1,1,1,2]' where id = 1")
    assert len(store.fetch([0, 2])[0]) == 2
    with pytest.raises(IntegrityError, match="id 1 "):
        store.fetch([0, 1])


def test_an_id_is_in_one_space_whoever_writes_at_once(store: PgvectorStore) -> None:
    store.add_space(Space(1, 3, "sha256:one"))

    def write(version: int) -> None:
        for _ in range(20):
            store.upsert(rows(range(50), version, 4 - version))

    threads = [threading.Thread(target=write, args=(i % 2,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(store.count().values()) == 50


def test_more_rows_than_one_request_takes(
    store: PgvectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.postgres.pgvector_store.WRITTEN_AT_ONCE", 7)
    store.add_space(Space(1, 3, "sha256:one"))
    store.upsert(rows(range(40)))
    store.upsert(rows(range(10, 30), 1, 3))
    assert store.count() == {0: 20, 1: 20}
    assert sum(map(len, store.fetch(range(40)))) == 40
    store.delete(range(35))
    assert store.count() == {0: 5}


def test_threads_work_together(store: PgvectorStore) -> None:
    work_together(store)


def test_a_server_that_goes_away_and_comes_back(
    server: PostgresServer, store: PgvectorStore
) -> None:
    query = np.ones((1, 4), dtype=np.float32)
    store.upsert(rows(range(10)))
    blocks = store.scan(0, size=4)
    assert len(next(blocks)) == 4
    server.stop()
    try:
        for call in (
            lambda: store.upsert(rows(range(10, 12))),
            lambda: store.fetch([1]),
            lambda: store.search({0: query}, 3),
            lambda: store.delete([1]),
            lambda: store.add_space(Space(9, 3, "sha256:nine")),
            store.count,
            store.build_index,
            lambda: open_store(store.address),
        ):
            start = time.monotonic()
            with pytest.raises(StoreError, match="cannot be reached"):
                call()
            assert time.monotonic() - start < A_FEW_SECONDS
    finally:
        server.start()
    assert len(store.fetch(range(10))[0]) == 10
    store.upsert(rows(range(10, 12)))
    assert len(store.search({0: query}, 20)[0]) == 12
    # A scan that was under way fails or goes on; this one only asks again when it needs to.
    assert sum(len(block) for block in blocks) == 8


@pytest.mark.long
def test_a_restart_between_two_calls_is_not_noticed(
    server: PostgresServer, store: PgvectorStore
) -> None:
    for stop in (server.stop, server.crash):
        store.upsert(rows(range(10)))
        stop()
        server.start()
        store.upsert(rows(range(5, 15)))
        stop()
        server.start()
        assert store.count() == {0: 15}
        store.delete(range(15))


@pytest.mark.long
def test_no_acknowledged_row_is_lost_when_the_server_crashes(
    server: PostgresServer, store: PgvectorStore
) -> None:
    acknowledged: list[int] = []
    failed: list[StoreError] = []

    def write() -> None:
        try:
            for i in itertools.count():
                store.upsert(rows(range(i * 200, i * 200 + 200), value=i))
                acknowledged.append(i)
        except StoreError as error:
            failed.append(error)

    # Batches that were acknowledged before the server crashes, in the middle of a later one.
    for batches in (1, 4, 9):
        acknowledged.clear()
        thread = threading.Thread(target=write)
        thread.start()
        while len(acknowledged) < batches:
            assert thread.is_alive()
            time.sleep(0.001)
        server.crash()
        thread.join()
        server.start()
        assert acknowledged
        for i in acknowledged:
            (found,) = store.fetch(range(i * 200, i * 200 + 200))
            assert len(found) == 200
            assert (found.vectors == i).all()
        # A batch is one transaction: what was not acknowledged is there whole or not at all.
        assert store.count()[0] % 200 == 0
    assert len(failed) == 3


def test_without_psycopg_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pgvector_store", "tables", "connection"):
        monkeypatch.delitem(sys.modules, f"evergram.stores.postgres.{module}")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DataError, match=r"pip install 'evergram\[pgvector\]'"):
        open_store("postgresql://ann@db/vectors#emb")


def test_a_store_of_before_the_side_was_kept(server: PostgresServer, store: PgvectorStore) -> None:
    store.upsert(rows(range(3)))
    name = store.address.rpartition("#")[2]
    server.sql(f"drop table {name}_side")
    with open_store(store.address) as again:
        assert again.side is None
        assert again.count() == {0: 3}
        again.take_side("candidate")
    assert store.side == "candidate"


def test_a_reader_without_the_right_to_write_reads_consistently(
    server: PostgresServer, store: PgvectorStore
) -> None:
    store.upsert(rows(range(3)))
    name = store.address.rpartition("#")[2]
    server.sql("create role onlooker login")
    for table in ("vectors", "spaces", "side"):
        server.sql(f"grant select on {name}_{table} to onlooker")
    address = store.address.replace("postgres@", "onlooker@")
    query = np.ones((1, 4), dtype=np.float32)
    with open_store(address) as reader:
        found = reader.read_consistently(lambda view: view.search({0: query}, 5))
        assert len(found[0]) == 3
        with pytest.raises(StoreError, match="permission denied"):
            reader.take_side("query")
    assert store.side is None


def test_a_view_that_fails_gives_its_connection_back(store: PgvectorStore) -> None:
    store.upsert(rows(range(3)))

    def fail(view: StoreView) -> None:
        view.count()
        raise DataError("not this time")

    for _ in range(20):
        with pytest.raises(DataError, match="not this time"):
            store.read_consistently(fail)
    assert store.read_consistently(lambda view: view.count()) == {0: 3}


def test_a_view_of_a_server_that_was_restarted_begins_again(
    server: PostgresServer, store: PgvectorStore
) -> None:
    store.upsert(rows(range(3)))
    views = []

    def look(view: StoreView) -> dict[int, int]:
        views.append(view)
        if len(views) == 1:
            server.stop()
            server.start()
        return view.count()

    assert store.read_consistently(look) == {0: 3}
    assert len(views) == 2


def test_a_closed_store_says_so(server: PostgresServer) -> None:
    store = PgvectorStore.open(server.address(next(NAMES)), "int64")
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.spaces()
