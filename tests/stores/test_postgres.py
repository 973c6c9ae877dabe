"""What is particular to PostgreSQL: it goes away, an index, and tables of one's own."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import DeadlockDetected
from psycopg.sql import SQL, Composed
from tests.support.lineages import DIMS
from tests.support.own_tables import NUMBERS, address_of, own_table
from tests.support.planted import planted, recall
from tests.support.postgres_server import PostgresServer, postgres
from tests.support.store_pairs import constant

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.pgvector_store import ConnectionPool, PgvectorStore
from evergram.stores.store import ReadableStore, Rows, Space, Store


@pytest.fixture(scope="module")
def server() -> PostgresServer:
    return postgres()


@pytest.fixture
def store(server: PostgresServer) -> Iterator[PgvectorStore]:
    with PgvectorStore.open(server.address(), "int64") as opened:
        opened.add_space(Space(0, 4, "sha256:zero"))
        yield opened


@pytest.mark.long
def test_no_acknowledged_row_is_lost_when_the_server_crashes(
    server: PostgresServer, store: PgvectorStore
) -> None:
    acknowledged: list[int] = []
    failed: list[StoreError] = []

    def write() -> None:
        try:
            for i in itertools.count():
                store.upsert(constant(range(i * 200, i * 200 + 200), value=i))
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


def test_a_reader_without_the_right_to_write_reads_consistently_and_notices_a_changed_row(
    server: PostgresServer, store: PgvectorStore
) -> None:
    store.upsert(constant(range(3)))
    name = store.address.rpartition("#")[2]
    server.sql("create role onlooker login")
    for table in ("vectors", "spaces", "side"):
        server.sql(f"grant select on {name}_{table} to onlooker")
    address = store.address.replace("postgres@", "onlooker@")
    query = np.ones((1, 4), dtype=np.float32)
    with open_store(address) as reader:
        hits = reader.read_consistently(lambda view: view.search({0: query}, 5))
        assert len(hits[0]) == 3
        assert isinstance(reader, Store)
        with pytest.raises(StoreError, match="permission denied"):
            reader.take_side("query")
        server.sql(f"update {name}_vectors set vector = '[1,1,1,2]' where id = 1")
        assert len(reader.fetch([0, 2])[0]) == 2
        with pytest.raises(IntegrityError, match="id 1 "):
            reader.fetch([0, 1])
    assert store.side is None


def test_a_server_that_goes_away_and_comes_back(
    server: PostgresServer, store: PgvectorStore
) -> None:
    query = np.ones((1, 4), dtype=np.float32)
    store.upsert(constant(range(10)))
    blocks = store.scan(0, size=4)
    assert len(next(blocks)) == 4
    server.stop()
    try:
        for call in (
            lambda: store.upsert(constant(range(10, 12))),
            lambda: store.fetch([1]),
            lambda: store.search({0: query}, 3),
            lambda: store.delete([1]),
            lambda: store.add_space(Space(9, 3, "sha256:nine")),
            store.count,
            store.build_index,
            lambda: open_store(store.address),
        ):
            with pytest.raises(StoreError, match="cannot be reached"):
                call()
        with pytest.raises(StoreError, match="cannot be reached") as caught:
            open_store(store.address.replace("postgres@", "ann:secret@"))
        assert "secret" not in str(caught.value)
    finally:
        server.start()
    assert len(store.fetch(range(10))[0]) == 10
    store.upsert(constant(range(10, 12)))
    assert len(store.search({0: query}, 20)[0]) == 12
    # A scan that was under way fails or goes on; this one only asks again when it needs to.
    assert sum(len(block) for block in blocks) == 8
    views = []

    def look(view: ReadableStore) -> dict[int, int]:
        views.append(view)
        if len(views) == 1:
            server.stop()
            server.start()
        return view.count()

    # A view of a server that was restarted begins again.
    assert store.read_consistently(look) == {0: 12}
    assert len(views) == 2


def test_work_is_done_again_once_where_postgresql_says_so(server: PostgresServer) -> None:
    params = {key: str(value) for key, value in conninfo_to_dict(server.uri).items()}
    with closing(ConnectionPool(params, "postgresql://db#emb")) as pool:
        deadlock = DeadlockDetected("deadlock detected")
        assert pool.run(Mock(side_effect=[deadlock, 2])) == 2
        always = Mock(side_effect=deadlock)
        with pytest.raises(StoreError, match="deadlock detected"):
            pool.run(always)
        assert always.call_count == 2
        # The server refuses in its own words.
        message = "postgresql://db#emb did not do what was asked: column .nonsense. does not exist"
        with pytest.raises(StoreError, match=message):
            pool.run(lambda c: c.execute(SQL("select nonsense")))
        with pytest.raises(DataError, match=r"cannot hold a value: .*out of range"):
            pool.run(lambda c: c.execute(SQL("select 100000::smallint")))


def test_tables_of_somebody_else_settings_and_a_missing_right(server: PostgresServer) -> None:
    server.sql("create table mine_vectors (id int primary key, version int, price int)")
    server.sql("insert into mine_vectors values (1, 2, 3)")
    for create in (None, "int64"):
        with pytest.raises(StoreError, match=r"another name after #|already exists"):
            open_store(server.address("mine"), create=create)
    assert server.sql("select * from mine_vectors") == [(1, 2, 3)]
    assert server.sql("select to_regclass('mine_spaces')") == [(None,)]
    # Settings of the address stay as they are.
    options = "-c%20hnsw.ef_search%3D333%20-c%20statement_timeout%3D7s"
    query = SQL(
        "select current_setting('hnsw.ef_search'), current_setting('statement_timeout'),"
        " current_setting('hnsw.iterative_scan'), current_setting('synchronous_commit')"
    )
    with PgvectorStore.open(f"{server.uri}&options={options}#settings", "int64") as store:
        values = store._connections.run(lambda c: c.execute(query).fetchone())
        assert values == ("333", "7s", "relaxed_order", "on")
    # The right to make the extension.
    server.sql("create role visitor login")
    server.sql("create database bare owner visitor")
    address = server.uri.replace("postgres:@/postgres", "visitor@/bare")
    with pytest.raises(StoreError, match="extension"):
        open_store(f"{address}#emb", create="int64")


def test_a_name_of_any_letters_and_a_connection_that_is_given_back(server: PostgresServer) -> None:
    with PgvectorStore.open(server.address("Select-From"), "string") as store:
        store.add_space(Space(0, 2, "sha256:'\"%s"))
        store.upsert(Rows(0, pa.array(["it's", "%s"]), np.eye(2, dtype=np.float32)))
        assert store.spaces()[0].fingerprint == "sha256:'\"%s"
        with pytest.raises(DataError, match="NUL"):
            store.upsert(Rows(0, pa.array(["a\0b"]), np.ones((1, 2), dtype=np.float32)))

        def fail(view: ReadableStore) -> None:
            view.count()
            raise DataError("not this time")

        for _ in range(20):
            with pytest.raises(DataError, match="not this time"):
                store.read_consistently(fail)
        assert store.read_consistently(lambda view: view.count()) == {0: 2}


def test_searches_use_the_index_and_filters_by_many_ids_its_order(
    server: PostgresServer, store: PgvectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = store.address.rpartition("#")[2]
    vectors, queries = planted()
    store.add_space(Space(2, 32, "sha256:two"))
    store.upsert(Rows(2, pa.array(np.arange(len(vectors))), vectors))
    assert store.build_index() == [2]
    with monkeypatch.context() as during:
        # A tenth of the ids, and the opposite of a query.
        during.setattr("evergram.stores.pgvector_store.LOOKED_UP", 100)
        assert recall(store, 2, vectors, queries, 10, np.arange(0, len(vectors), 10)) >= 0.9
        far = np.argsort(queries[0] @ vectors.T)[:120]
        assert recall(store, 2, vectors, queries[:1], 10, far) == 1.0
    # The plan of the very statement that a search sends.
    asked: list[str] = []
    run = store._run

    def explained(query: Composed, values: list[object] | None = None) -> list[object]:
        asked.extend(str(row) for row in run(SQL("explain ") + query, values))
        return run(query, values)

    monkeypatch.setattr(store, "_run", explained)
    store.search({2: queries[:1]}, 10)
    assert f"{name}_v2_hnsw " in str(asked)
    assert "halfvec" not in str(asked)
    # As if they were too long for an index of whole vectors.
    monkeypatch.setattr("evergram.stores.pgvector_store.LONGEST", 31)
    server.sql(f"drop index {name}_v2_hnsw")
    assert store.build_index() == [2]
    server.sql(f"analyze {name}_vectors")
    asked.clear()
    assert recall(store, 2, vectors, queries, 10) >= 0.9
    assert f"{name}_v2_hnsw " in str(asked)
    assert "halfvec" in str(asked)
    # The order of halves is that of a query of any length.
    plain, long = (store.search({2: queries * np.float32(n)}, 10) for n in (1, 1e6))
    assert [h.ids.to_pylist() for h in long] == [h.ids.to_pylist() for h in plain]
    with pytest.raises(DataError, match="halfvec"):
        store.upsert(Rows(2, pa.array([7]), np.full((1, 32), 7e4, np.float32)))


def test_vectors_too_long_for_an_index_are_searched_exactly(
    store: PgvectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.pgvector_store.INDEXED_FROM", 10)
    draw = np.random.default_rng(0)
    for version, dim in ((1, 2001), (2, 4001)):
        vectors = draw.normal(size=(20, dim)).astype(np.float32)
        store.add_space(Space(version, dim, f"sha256:{version}"))
        store.upsert(Rows(version, pa.array(np.arange(20) + 20 * version), vectors))
        assert len(store.search({version: vectors[:3]}, 5)) == 3
    assert store.build_index() == [1]
    assert len(store.search({1: np.ones((1, 2001), np.float32)}, 5)[0]) == 5


def test_an_index_that_a_killed_builder_left_is_built_anew(
    server: PostgresServer, store: PgvectorStore
) -> None:
    store.upsert(constant(range(1200)))
    store.build_index()
    name = store.address.rpartition("#")[2]
    index = f"{name}_v0_hnsw"
    state = f"select indisvalid from pg_index where indexrelid = '{index}'::regclass"
    server.sql(f"update pg_index set indisvalid = false where indexrelid = '{index}'::regclass")
    store.build_index()
    assert server.sql(state) == [(True,)]


QUERY = {0: np.ones((1, DIMS[0]), np.float32)}


def test_a_view_is_a_table(server: PostgresServer) -> None:
    table = own_table(20)
    server.sql(f"create view v_{table} as select * from {table} where category = 'news'")
    with open_store(address_of(f"v_{table}")) as store:
        assert store.count() == {0: 7}
    server.sql(f"create view w_{table} as select * from {table} union all select * from {table}")
    with (
        open_store(address_of(f"w_{table}")) as store,
        pytest.raises(IntegrityError, match="twice"),
    ):
        store.fetch([1])


def test_a_role_that_may_only_select_reads_and_one_that_may_not_does_not(
    server: PostgresServer,
) -> None:
    table = own_table(5)
    number = next(NUMBERS)
    for right in ("select", ""):
        role = f"reader{number}{right}"
        server.sql(f"create role {role} login")
        uri = server.uri.replace("postgres:@", f"{role}:secret@")
        with open_store(f"pgvector-table:{uri}#table={table}&v0=e0") as store:
            if right:
                server.sql(f"grant select on {table} to {role}")
                assert len(store.search(QUERY, 3)[0]) == 3
                continue
            with pytest.raises(StoreError, match="permission denied") as refused:
                store.search(QUERY, 3)
            assert "secret" not in str(refused.value)


def test_a_column_of_other_dims_by_now_or_of_none(server: PostgresServer) -> None:
    with pytest.raises(StoreError, match=r"vector\(D\)"):
        open_store(address_of(own_table(5, dims=False)))
    table = own_table(20)
    with open_store(address_of(table)) as store:
        server.sql(f"alter table {table} alter column e0 type vector(2) using '[1,2]'")
        assert store.spaces()[0].dim == 2
        assert store.fetch([1])[0].vectors.tolist() == [[1, 2]]
