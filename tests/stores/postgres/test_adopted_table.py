"""What only a table of one's own in PostgreSQL has: rights, views, and columns without dims."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.lineages import DIMS
from tests.support.own_tables import NUMBERS, address_of, own_table
from tests.support.postgres_server import PostgresServer

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.open_store import open_store

QUERY = {0: np.ones((1, DIMS[0]), np.float32)}


def test_a_filter_cannot_write(server: PostgresServer) -> None:
    table = own_table(5)
    server.sql(
        f"create function wipe_{table}() returns boolean language plpgsql as"
        f" $$ begin delete from {table}; return true; end $$"
    )
    with open_store(address_of(table)) as store:
        with pytest.raises(StoreError, match="read-only"):
            store.where(f"wipe_{table}()").search(QUERY, 3)
        assert store.count() == {0: 5}


def test_a_view_is_read_and_one_with_an_id_twice_is_refused(server: PostgresServer) -> None:
    table = own_table(20)
    server.sql(f"create view v_{table} as select * from {table} where category = 'news'")
    with open_store(address_of(f"v_{table}")) as store:
        assert store.count() == {0: 7}
    server.sql(f"create view w_{table} as select * from {table} union all select * from {table}")
    with pytest.raises(StoreError, match="twice"):
        open_store(address_of(f"w_{table}"))


def test_vectors_of_two_dims_are_refused(server: PostgresServer) -> None:
    table = own_table(5, dims=False)
    with open_store(address_of(table)) as store:
        server.sql(f"update {table} set e0 = '[1,2]' where id = 2")
        with pytest.raises(IntegrityError, match="differ in dim"):
            store.fetch([2])
        with pytest.raises((DataError, StoreError), match=r"dimensions|2 and 6 dims"):
            store.search(QUERY, 3)
    with pytest.raises(StoreError, match="2 and 6 dims"):
        open_store(address_of(table))


def test_a_role_that_may_only_select_reads_and_one_that_may_not_does_not(
    server: PostgresServer,
) -> None:
    table = own_table(5)
    number = next(NUMBERS)
    for right in ("select", None):
        role = f"reader{number}{right}".lower()
        server.sql(f"create role {role} login")
        if right:
            server.sql(f"grant select on {table} to {role}")
        uri = server.uri.replace("postgres:@", f"{role}:secret@")
        address = f"pgvector-table:{uri}#table={table}&v0=e0"
        if right:
            with open_store(address) as store:
                assert len(store.search(QUERY, 3)[0]) == 3
        else:
            with open_store(address) as store:
                with pytest.raises(StoreError, match="permission denied") as refused:
                    store.search(QUERY, 3)
                assert "secret" not in str(refused.value)


def test_a_column_of_other_dims_by_now(server: PostgresServer) -> None:
    table = own_table(20)
    with open_store(address_of(table)) as store:
        server.sql(f"alter table {table} alter column e0 type vector(2) using '[1,2]'")
        assert store.spaces()[0].dim == 2
        assert store.fetch([1])[0].vectors.tolist() == [[1, 2]]
