"""What is particular to PostgreSQL: it goes away, has sessions, and others' tables."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import DeadlockDetected
from psycopg.sql import SQL
from tests.support.postgres_rows import NAMES, rows
from tests.support.postgres_server import PostgresServer

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.postgres.connection import (
    Connection,
    ConnectionPool,
)
from evergram.stores.postgres.fair_semaphore import FairSemaphore
from evergram.stores.postgres.pgvector_store import PgvectorStore
from evergram.stores.store import Rows, Space, StoreView


def test_a_changed_row_is_noticed(server: PostgresServer, store: PgvectorStore) -> None:
    store.upsert(rows(range(3)))
    name = store.address.rpartition("#")[2]
    server.sql(f"update {name}_vectors set vector = '[1,1,1,2]' where id = 1")
    assert len(store.fetch([0, 2])[0]) == 2
    with pytest.raises(IntegrityError, match="id 1 "):
        store.fetch([0, 1])


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
        hits = reader.read_consistently(lambda view: view.search({0: query}, 5))
        assert len(hits[0]) == 3
        with pytest.raises(StoreError, match="permission denied"):
            reader.take_side("query")
    assert store.side is None


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


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with pytest.raises(StoreError, match=r"ann@127\.0\.0\.1:9/vectors#emb can") as caught:
        open_store("postgresql://ann:secret@127.0.0.1:9/vectors#emb")
    assert "secret" not in str(caught.value)


A_FEW_SECONDS = 6.0


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


@pytest.fixture
def pool(server: PostgresServer) -> Iterator[ConnectionPool]:
    params = {key: str(value) for key, value in conninfo_to_dict(server.uri).items()}
    opened = ConnectionPool(params, "postgresql://db#emb", lambda connection: None)
    yield opened
    opened.close()


def test_the_server_refuses_in_its_own_words(pool: ConnectionPool) -> None:
    message = "postgresql://db#emb did not do what was asked: column .nonsense. does not exist"
    with pytest.raises(StoreError, match=message):
        pool.run(lambda c: c.execute(SQL("select nonsense")))
    with pytest.raises(DataError, match=r"cannot hold a value: .*out of range"):
        pool.run(lambda c: c.execute(SQL("select 100000::smallint")))


def test_work_is_done_again_once_where_postgresql_says_so(pool: ConnectionPool) -> None:
    calls = []

    def work(connection: Connection) -> int:
        calls.append(connection)
        if len(calls) < 2:
            raise DeadlockDetected("deadlock detected")
        return len(calls)

    assert pool.run(work) == 2

    def always(connection: Connection) -> int:
        calls.append(connection)
        raise DeadlockDetected("deadlock detected")

    with pytest.raises(StoreError, match="deadlock detected"):
        pool.run(always)
    assert len(calls) == 4


def test_settings_of_the_address_stay_as_they_are(server: PostgresServer) -> None:
    options = "-c%20hnsw.ef_search%3D333%20-c%20statement_timeout%3D7s"
    address = f"{server.uri}&options={options}#{next(NAMES)}"
    asked = ("hnsw.ef_search", "statement_timeout", "hnsw.iterative_scan", "synchronous_commit")
    query = SQL("select array[{}]").format(
        SQL(", ").join(SQL("current_setting({})").format(name) for name in asked)
    )
    with PgvectorStore.open(address, "int64") as store:
        values = store._connections.run(lambda c: c.execute(query).fetchone())
        assert values == (["333", "7s", "relaxed_order", "on"],)


def test_without_the_right_to_make_the_extension_the_error_says_what_to_do(
    server: PostgresServer,
) -> None:
    server.sql("create role visitor login")
    server.sql("create database bare owner visitor")
    address = server.uri.replace("postgres:@/postgres", "visitor@/bare")
    with pytest.raises(StoreError, match="create extension vector"):
        open_store(f"{address}#emb", create="int64")


def test_tables_of_somebody_else_are_refused_and_left_alone(server: PostgresServer) -> None:
    name = next(NAMES)
    server.sql(f"create table {name}_vectors (id int primary key, version int, price int)")
    server.sql(f"insert into {name}_vectors values (1, 2, 3)")
    for create in (None, "int64"):
        with pytest.raises(StoreError, match="give another name after #"):
            open_store(server.address(name), create=create)
    assert server.sql(f"select * from {name}_vectors") == [(1, 2, 3)]
    assert server.sql(f"select to_regclass('{name}_spaces')") == [(None,)]


def test_waiters_are_served_in_order_of_arrival_and_give_up_where_nobody_makes_progress() -> None:
    semaphore = FairSemaphore(1, patience=0.1)
    assert semaphore.acquire()
    assert not semaphore.acquire()
    semaphore.release()
    # Nobody who gave up is called later.
    assert semaphore.acquire()
    order: list[int] = []
    patient = FairSemaphore(1, patience=60.0)
    assert patient.acquire()

    def go(number: int) -> None:
        assert patient.acquire()
        order.append(number)
        patient.release()

    waiting = [threading.Thread(target=go, args=(number,)) for number in range(6)]
    for number, thread in enumerate(waiting):
        thread.start()
        while len(patient._waiting) <= number:
            time.sleep(0.001)
    patient.release()
    for thread in waiting:
        thread.join()
    assert order == list(range(6))


def test_a_name_of_any_letters_and_a_connection_that_is_given_back(server: PostgresServer) -> None:
    with PgvectorStore.open(server.address("Select-From"), "string") as store:
        store.add_space(Space(0, 2, "sha256:'\"%s"))
        store.upsert(Rows(0, pa.array(["it's", "%s"]), np.eye(2, dtype=np.float32)))
        assert store.spaces()[0].fingerprint == "sha256:'\"%s"
        with pytest.raises(DataError, match="NUL"):
            store.upsert(Rows(0, pa.array(["a\0b"]), np.ones((1, 2), dtype=np.float32)))

        def fail(view: StoreView) -> None:
            view.count()
            raise DataError("not this time")

        for _ in range(20):
            with pytest.raises(DataError, match="not this time"):
                store.read_consistently(fail)
        assert store.read_consistently(lambda view: view.count()) == {0: 2}


def test_an_id_is_in_one_space_whoever_writes_at_once(store: PgvectorStore) -> None:
    store.add_space(Space(1, 3, "sha256:one"))

    def write(version: int) -> None:
        for _ in range(10):
            store.upsert(rows(range(50), version, 4 - version))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, [0, 1] * 3))
    assert sum(store.count().values()) == 50
