"""The tables of a store, and the settings of its connections."""

from __future__ import annotations

import pytest
from psycopg.sql import SQL
from tests.support.postgres_rows import NAMES
from tests.support.postgres_server import PostgresServer

from evergram.errors import DataError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.postgres.pgvector_store import PgvectorStore


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


def test_a_store_that_is_missing_or_has_ids_of_another_type_is_named(
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


def test_tables_of_somebody_else_are_refused_and_left_alone(server: PostgresServer) -> None:
    name = next(NAMES)
    server.sql(f"create table {name}_vectors (id int primary key, version int, price int)")
    server.sql(f"insert into {name}_vectors values (1, 2, 3)")
    for create in (None, "int64"):
        with pytest.raises(StoreError, match="give another name after #"):
            open_store(server.address(name), create=create)
    assert server.sql(f"select * from {name}_vectors") == [(1, 2, 3)]
    assert server.sql(f"select to_regclass('{name}_spaces')") == [(None,)]
