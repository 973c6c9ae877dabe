"""The tables of an SQLite store beside those of others, and its record."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.optional import need
from tests.support.sqlite_files import asked, edited, rows

from evergram.errors import FormatError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.sqlite.sqlite_store import SqliteStore
from evergram.stores.sqlite.sqlite_tables import norms
from evergram.stores.store import Space

need("apsw")
need("sqlite_vec")


def test_lengths_that_distances_cannot_bear_have_no_norm() -> None:
    vectors = np.array([[3, 4], [0, 0], [1e20, 0], [1e-20, 0]], dtype=np.float32)
    assert norms(vectors) == [5.0, 0.0, None, None]


def test_one_file_has_several_stores_and_tables_of_others(store: SqliteStore) -> None:
    store.upsert(rows(range(5)))
    edited(
        store._path,
        "create table prices (film integer, price real)",
        "insert into prices values (1, 2)",
    )
    with open_store(store.address.replace("#emb", "#people"), create="string") as people:
        people.add_space(Space(0, 2, "sha256:zero"))
        assert people.count() == {}
    assert store.count() == {0: 5}
    assert asked(store._path, "select * from prices") == [(1, 2.0)]


@pytest.mark.parametrize("table", ["mine_record", "mine_spaces", "MINE_v3"])
def test_a_table_of_somebody_else_is_refused_and_stays(store: SqliteStore, table: str) -> None:
    edited(store._path, f"create table {table} (name text)", f"insert into {table} values ('a')")
    with pytest.raises(StoreError, match=f"a table {table} that .* did not write; give another"):
        open_store(store.address.replace("#emb", "#mine"), create="int64")
    assert asked(store._path, f"select * from {table}") == [("a",)]


def test_a_table_of_somebody_else_is_no_space(store: SqliteStore) -> None:
    edited(store._path, "create table EMB_V7 (name text)")
    with pytest.raises(StoreError, match="a table emb_v7"):
        store.add_space(Space(7, 4, "sha256:seven"))
    assert list(store.spaces()) == [0]


def test_a_name_in_other_letters_is_the_same_store(store: SqliteStore) -> None:
    store.upsert(rows(range(5)))
    with open_store(store.address.replace("#emb", "#EMB"), create="int64") as other:
        assert other.count() == {0: 5}
        assert other.place == store.place


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("update emb_record set format = 9", "format 9"),
        ("update emb_record set id_type = 'date'", "record of .* is damaged"),
        ("delete from emb_record", "record of .* is damaged"),
        ("alter table emb_record add column more", "did not write"),
    ],
)
def test_a_record_that_is_not_ours_or_damaged_is_an_error(
    store: SqliteStore, change: str, error: str
) -> None:
    edited(store._path, change)
    with pytest.raises((StoreError, FormatError), match=error):
        open_store(store.address)
