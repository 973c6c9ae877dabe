"""Tables of every odd sort: names that need quotes, ids of other types, views, lost rights."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from psycopg.sql import Identifier
from tests.support.lineages import DIMS, vectors_of
from tests.support.own_tables import NUMBERS, address_of, own_table
from tests.support.postgres_server import PostgresServer

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.open_store import open_store

QUERY = {0: np.ones((1, DIMS[0]), np.float32)}


def test_a_row_belongs_to_its_newest_column() -> None:
    table = own_table(20, {0: range(15), 1: range(5, 10)})
    with open_store(address_of(table, [0, 1])) as store:
        assert store.count() == {0: 10, 1: 5}
        assert {rows.version: len(rows) for rows in store.fetch(list(range(20)))} == {0: 10, 1: 5}
        ids = [i for rows in store.scan(0, size=3) for i in rows.ids.to_pylist()]
        assert ids == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


@pytest.mark.parametrize("id_type", ["smallint", "integer", "bigint", "text", "varchar"])
def test_ids_of_whole_numbers_and_texts(id_type: str) -> None:
    with open_store(address_of(own_table(20, id_type=id_type))) as store:
        number = id_type not in ("text", "varchar")
        asked = [3, 19, 99_999] if number else ["3", "19", "x\0"]
        (rows,) = store.fetch(asked)
        assert sorted(map(int, rows.ids.to_pylist())) == [3, 19]
        order = [int(i) for i in rows.ids.to_pylist()]
        assert np.array_equal(rows.vectors, vectors_of(0, 20).numpy()[order])
        (hits,) = store.search(QUERY, 30)
        assert len(hits) == 20
        assert sum(len(rows) for rows in store.scan(size=7)) == 20


def test_ids_that_are_uuids(server: PostgresServer) -> None:
    table = own_table(9)
    server.sql(
        f"alter table {table} alter column id type uuid using"
        " ('00000000-0000-0000-0000-00000000000' || id)::uuid"
    )
    with open_store(address_of(table)) as store:
        wanted = str(uuid.UUID(int=4))
        (rows,) = store.fetch([wanted, "no uuid", wanted.replace("-", "")])
        assert rows.ids.to_pylist() == [wanted]
        assert sum(len(rows) for rows in store.scan(size=2)) == 9
        assert len(store.search(QUERY, 3, ids=[wanted, "x"])[0]) == 1


@pytest.mark.parametrize(
    "name", ["My docs", 'a"b', "50% off", "naïve", "x'; drop table y; --", "{a}"]
)
def test_names_that_need_quotes(server: PostgresServer, name: str) -> None:
    table = f"{name}{next(NUMBERS)}"
    own_table(20, name=table)
    quoted = Identifier(table).as_string(None)
    for old in ("id", "e0", "category"):
        server.sql(
            f"alter table {quoted} rename {old} to {Identifier(f'{name}-{old}').as_string(None)}"
        )
    escaped = {part: f"{name}-{part}".replace("%", "%25") for part in ("id", "e0", "category")}
    address = (
        f"pgvector-table:{server.uri}#table={table.replace('%', '%25')}&id={escaped['id']}"
        f"&v0={escaped['e0']}&filter={escaped['category']}"
    )
    with open_store(address) as store:
        assert sorted(store.search(QUERY, 30)[0].ids.to_pylist()) == list(range(20))
        view = store.where({f"{name}-category": "news"})
        assert len(view.search(QUERY, 30)[0]) == 7
        assert sum(len(rows) for rows in store.scan(size=6)) == 20
        assert len(store.fetch([1, 2])[0]) == 2


def test_filters_of_every_form(server: PostgresServer) -> None:
    table = own_table(40)
    server.sql(f"alter table {table} add day date, add price real, add sold boolean")
    server.sql(
        f"update {table} set day = date '2026-01-01' + id::int, price = id * 0.1, sold = id % 2 = 0"
    )
    every = "&filter=category,year,day,price,sold,title"

    def ids(asked: object) -> list[int]:
        with open_store(address_of(table, [0], every)) as store:
            rows = store.where(asked).search(QUERY, 99)[0].ids  # type: ignore[arg-type]
            return sorted(rows.to_pylist())

    assert ids({"category": "o'clock; --"}) == list(range(2, 40, 3))
    assert ids({"category": ["news", "o'clock; --"], "year": [2000, 2003]}) == [0, 3, 20, 23]
    assert ids({"day": {"gte": "2026-01-31", "lt": "2026-02-02"}}) == [30, 31]
    assert ids({"price": 0.3}) == [3]
    assert ids({"year": 2000.5}) == []
    assert ids({"year": {"gt": 2018.5}}) == [19, 39]
    assert ids({"sold": False, "title": {"lte": "Title 11"}}) == [1, 11]
    assert ids("category = 'news' and title like '%9' -- so") == [9, 39]
    assert ids(("category = %s and year > %s", ["news", 2015])) == [18, 36, 39]
    with pytest.raises(DataError, match=r"of type date, with .yesterday or so.; write it as"):
        ids({"day": "yesterday or so"})
    for broken in ("category = ", "true; drop table x", "no_column = 1"):
        with pytest.raises(StoreError):
            ids(broken)
    with pytest.raises(DataError, match="do not pair"):
        ids("true) or (true")


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
    # Ids that come to be twice later, where nothing keeps them unique.
    server.sql(f"create table t_{table} as select * from {table}")
    with open_store(address_of(f"t_{table}")) as store:
        server.sql(f"insert into t_{table} select * from {table} where id = 3")
        for read in (lambda: store.fetch([3]), lambda: store.search(QUERY, 20)):
            with pytest.raises(IntegrityError, match="twice"):
                read()


def test_a_null_id_is_no_row(server: PostgresServer) -> None:
    table = own_table(5)
    server.sql(f"create table n_{table} as select * from {table}")
    server.sql(f"update n_{table} set id = null where id = 2")
    with open_store(address_of(f"n_{table}")) as store:
        assert store.count() == {0: 4}
        assert len(store.search(QUERY, 9)[0]) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("drop column e0", "does not have"),
        ("rename e0 to e9", "does not have"),
        ("drop column id", "does not have"),
        ("drop column category", "does not have"),
    ],
)
def test_a_column_that_goes_while_a_store_is_open(
    server: PostgresServer, change: str, words: str
) -> None:
    table = own_table(5)
    with open_store(address_of(table, [0], "&filter=category")) as store:
        server.sql(f"alter table {table} {change}")
        for read in (store.spaces, lambda: store.read_consistently(lambda v: v.search(QUERY, 3))):
            with pytest.raises(StoreError, match=words):
                read()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("#table=TABLE&v0=nothing", "'nothing' for vectors, which the table does not have"),
        ("#table=TABLE&v0=title", "'title' .* is of type text; for vectors"),
        ("#table=TABLE&v0=e0&id=e0", "is of type vector; for ids"),
        ("#table=TABLE&v0=e0&filter=x", "'x' for filters"),
        ("#table=TABLE&v0=e0&filter=category,e0", "'e0' .* is of type vector; for filters it must"),
        ("#table=nowhere&v0=e0", "no table of that name"),
        ("#table=TABLE&schema=nowhere&v0=e0", "no table of that name"),
    ],
)
def test_addresses_that_do_not_fit_the_table(server: PostgresServer, more: str, words: str) -> None:
    table = own_table(5)
    with pytest.raises((DataError, StoreError), match=words):
        open_store(f"pgvector-table:{server.uri}{more.replace('TABLE', table)}")


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


def test_nothing_was_written(server: PostgresServer) -> None:
    table = own_table(5)
    before = server.sql("select relname from pg_class where relkind in ('r', 'i') order by 1")
    with open_store(address_of(table)) as store:
        store.search(QUERY, 3)
        store.fetch([1])
    assert (
        server.sql("select relname from pg_class where relkind in ('r', 'i') order by 1") == before
    )


def test_ids_that_become_texts_while_the_table_is_open(server: PostgresServer) -> None:
    table = own_table(20)
    with open_store(address_of(table)) as store:
        server.sql(f"alter table {table} alter column id type text using '0' || id")
        for read in (
            lambda: store.search(QUERY, 3),
            lambda: store.fetch([1, 2]),
            lambda: list(store.scan()),
            lambda: store.spaces(),
        ):
            with pytest.raises(StoreError, match="are texts now, and were whole numbers"):
                read()


def test_a_column_of_other_dims_by_now(server: PostgresServer) -> None:
    table = own_table(20)
    with open_store(address_of(table)) as store:
        server.sql(f"alter table {table} alter column e0 type vector(2) using '[1,2]'")
        assert store.spaces()[0].dim == 2
        assert store.fetch([1])[0].vectors.tolist() == [[1, 2]]
