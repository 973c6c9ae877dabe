"""Addresses, passwords, and a server that goes away."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import DeadlockDetected
from psycopg.sql import SQL
from tests.support.postgres_rows import rows
from tests.support.postgres_server import PostgresServer

from evergram.errors import DataError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.postgres.connection import (
    Connection,
    ConnectionPool,
    read_address,
    show_address,
)
from evergram.stores.postgres.pgvector_store import PgvectorStore
from evergram.stores.store import Space


@pytest.mark.parametrize(
    ("address", "shown"),
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
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    params, name = read_address(address)
    result = show_address(params, name)
    assert result == shown
    without = {k: v for k, v in params.items() if k != "password"}
    assert read_address(result) == (without, name)


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


def test_without_psycopg_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pgvector_store", "tables", "connection"):
        monkeypatch.delitem(sys.modules, f"evergram.stores.postgres.{module}")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DataError, match=r"pip install 'evergram\[pgvector\]'"):
        open_store("postgresql://ann@db/vectors#emb")


@pytest.fixture
def pool(server: PostgresServer) -> Iterator[ConnectionPool]:
    params = {key: str(value) for key, value in conninfo_to_dict(server.uri).items()}
    opened = ConnectionPool(params, "postgresql://db#emb", lambda connection: None)
    yield opened
    opened.close()


def test_an_idle_connection_is_used_again(pool: ConnectionPool) -> None:
    query = SQL("select pg_backend_pid()")
    first, second = (pool.run(lambda c: c.execute(query).fetchone()) for _ in range(2))
    assert first == second


def test_a_connection_within_a_transaction_is_not_used_again(pool: ConnectionPool) -> None:
    query = SQL("select pg_backend_pid(), current_setting('application_name')")

    def begin(connection: Connection) -> tuple[int, str]:
        connection.execute(SQL("begin"))
        row = connection.execute(query).fetchone()
        assert row is not None
        return row[0], row[1]

    first, second = pool.run(begin), pool.run(begin)
    assert first[0] != second[0]
    assert {first[1], second[1]} == {"evergram"}


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


def test_a_closed_pool_opens_no_connection(pool: ConnectionPool) -> None:
    pool.close()
    with pytest.raises(StoreError, match="postgresql://db#emb was closed; open it again"):
        pool.run(lambda c: None)
