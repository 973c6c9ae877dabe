"""What is particular to SQLite: exact searches, damaged rows, its file, and others' tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.optional import need
from tests.support.store_pairs import constant

from evergram.errors import DataError, FormatError, IntegrityError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.store import Floats, Rows, Space, Store

need("apsw", "sqlite_vec")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "films.db"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    with open_store(f"sqlite:{file}#emb", create="int64") as opened:
        opened.add_space(Space(0, 4, "sha256:zero"))
        yield opened


def edited(path: Path, *statements: str) -> list[Any]:
    """Change an SQLite file as another program would. Returns: the rows of the last statement."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return [connection.execute(statement).fetchall() for statement in statements][-1]


def best(vectors: Floats, query: Floats, k: int) -> list[float]:
    """Return the largest inner products, by a loop in float64."""
    products = [float(np.dot(v.astype(np.float64), query.astype(np.float64))) for v in vectors]
    return sorted(products, reverse=True)[:k]


# Lengths that overflow or vanish where a float32 is squared, and no length at all.
LENGTHS = [0.0, 1e-37, 1e-25, 1e-14, 1e-3, 1.0, 1e3, 1e14, 1e20, 1e30]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=60),
    st.sampled_from([0.0, 1e-20, 1.0, 1e6]),
    st.integers(1, 25),
    st.integers(0, 10_000),
)
def test_the_best_are_found_whatever_their_lengths(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[float], size: float, k: int, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    vectors = chance.normal(size=(len(lengths), 6)) * np.array(lengths)[:, None]
    query = (chance.normal(size=6) * size).astype(np.float32)
    written = Rows(0, pa.array(range(len(lengths))), vectors.astype(np.float32))
    address = f"sqlite:{tmp_path_factory.mktemp('s')}/s.db#emb"
    with open_store(address, create="int64") as store:
        store.add_space(Space(0, 6, "sha256:zero"))
        store.upsert(written)
        (hits,) = store.search({0: query[None]}, k)
    truth = best(written.vectors, query, k)
    largest = np.abs(query).max() * np.abs(written.vectors).max() * 1e-6
    assert len(hits) == len(truth)
    np.testing.assert_allclose(hits.scores, truth, rtol=1e-5, atol=max(largest, 1e-44))


def test_rows_that_rounding_cannot_tell_apart_are_scored_by_themselves(store: Store) -> None:
    """A thousand rows nearly alike, of which sqlite-vec's float32 distances make ties."""
    vectors = np.ones((1000, 4), dtype=np.float32)
    steps = np.float32(2.0**-20) * np.random.default_rng(0).permutation(1000).astype(np.float32)
    vectors[:, 0] += steps / 64
    query = np.array([1, -0.25, -0.25, -0.25], dtype=np.float32)
    store.upsert(Rows(0, pa.array(range(1000)), vectors))
    (hits,) = store.search({0: query[None]}, 3)
    np.testing.assert_allclose(hits.scores, best(vectors, query, 3), rtol=0, atol=2e-7)


@pytest.mark.parametrize(
    "change",
    [
        *(f"vector = {raw}" for raw in ("zeroblob(16)", "zeroblob(12)", "zeroblob(3)", "null")),
        *("vector = 7", "checksum = checksum + 1", "checksum = 'a'", "id = 99"),
    ],
)
def test_a_row_that_was_changed_never_comes_out(store: Store, file: Path, change: str) -> None:
    store.upsert(constant(range(3)))
    edited(file, f"update emb_v0 set {change} where id = 1")
    query = np.ones((1, 4), dtype=np.float32)
    for ask in (
        lambda: store.fetch([1, 99]),
        lambda: list(store.scan()),
        lambda: store.search({0: query}, 3),
        lambda: store.search({0: query}, 3, ids=[1, 99]),
    ):
        with pytest.raises((StoreError, IntegrityError)):
            ask()
    assert len(store.fetch([0, 2])[0]) == 2


def test_a_file_of_something_else_is_refused_and_stays(tmp_path: Path) -> None:
    text = "films, and what they cost\n" * 100
    (tmp_path / "films.csv").write_text(text)
    for create in (None, "int64"):
        with pytest.raises(StoreError, match="not a database"):
            open_store(f"sqlite:{tmp_path}/films.csv#emb", create=create)
    assert (tmp_path / "films.csv").read_text() == text
    with pytest.raises(StoreError, match="cannot be read or written"):
        open_store(f"sqlite:{tmp_path}#emb", create="int64")


def test_a_full_disk_undoes_the_whole_write(store: Any) -> None:
    store.upsert(constant(range(10)))
    with store._file.writing() as connection:
        connection.execute("pragma max_page_count = 20")
    with pytest.raises(StoreError, match=r"full.*disk has room"):
        store.upsert(constant(range(5, 20_000), value=2.0))
    np.testing.assert_array_equal(store.fetch(range(10))[0].vectors, 1.0)
    assert store.count() == {0: 10}


def test_another_writer_is_waited_for_and_then_an_error(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.sqlite.sqlite_file.WAIT", 0.05)
    late = pytest.raises(StoreError, match="Another process has been writing")
    address = store.address
    with open_store(address, create="int64") as other, store._file.writing(), late:
        other.upsert(constant(range(3)))
    assert store.count() == {}


def test_a_store_that_many_make_at_once_is_one(tmp_path: Path) -> None:
    """A new file turns to its log ahead of all others, and SQLite does not wait there by itself."""
    for i in range(5):
        address = f"sqlite:{tmp_path}/new{i}/s.db#emb"

        def make(number: int, address: str = address) -> dict[int, int]:
            with open_store(address, create="int64") as made:
                made.add_space(Space(0, 4, "sha256:zero"))
                made.upsert(constant([number]))
                return made.count()

        with ThreadPoolExecutor(8) as pool:
            assert max(count[0] for count in pool.map(make, range(8))) == 8


def test_one_file_has_several_stores_and_tables_of_others(store: Store, file: Path) -> None:
    store.upsert(constant(range(5)))
    edited(file, "create table prices (film, price)", "insert into prices values (1, 2)")
    with open_store(store.address.replace("#emb", "#people"), create="string") as people:
        people.add_space(Space(0, 2, "sha256:zero"))
        assert people.count() == {}
    # A name in other letters is the same store's.
    with open_store(store.address.replace("#emb", "#EMB"), create="int64") as other:
        assert (other.count(), other.place) == ({0: 5}, store.place)
    assert edited(file, "select * from prices") == [(1, 2)]


def test_a_table_of_somebody_else_is_refused_and_stays(store: Store, file: Path) -> None:
    for table in ("mine_record", "mine_spaces", "MINE_v3"):
        edited(file, f"create table {table} (name text)", f"insert into {table} values ('a')")
        with pytest.raises(StoreError, match=f"a table {table} "):
            open_store(store.address.replace("#emb", "#mine"), create="int64")
        assert edited(file, f"select * from {table}") == [("a",)]
        edited(file, f"drop table {table}")
    edited(file, "create table EMB_V7 (name text)")
    with pytest.raises(StoreError, match="a table emb_v7"):
        store.add_space(Space(7, 4, "sha256:seven"))
    assert list(store.spaces()) == [0]


def test_an_sqlite_that_loads_no_extensions_is_refused(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    import apsw

    monkeypatch.setattr(apsw, "Connection", object)
    with pytest.raises(DataError, match="built without loadable extensions"):
        open_store(f"sqlite:{file}#emb", create="int64")


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
    store: Store, file: Path, change: str, error: str
) -> None:
    edited(file, change)
    with pytest.raises((StoreError, FormatError), match=error):
        open_store(store.address)
