"""What is particular to SQLite (exact searches, damaged rows, its file, tables of others) and to
LanceDB (versions, processes, and tables of one's own)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.optional import need
from tests.support.own_tables import listed, table_of
from tests.support.store_pairs import constant

from evergram.errors import DataError, FormatError, IntegrityError, StoreError
from evergram.retrieval.reader import Reader
from evergram.stores import lance_store
from evergram.stores.lance_store import LanceStore
from evergram.stores.open_store import open_store
from evergram.stores.sqlite_store import SqliteStore
from evergram.stores.store import Floats, Rows, Space, Store, errors_as_store_errors


@pytest.fixture
def file(tmp_path: Path) -> Path:
    need("apsw")
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


def test_a_sum_whose_parts_are_past_float32_has_a_score(store: Store) -> None:
    vectors = np.array([[1e20, -1e20, 1e20, 0], [1, 0, 0, 0]], dtype=np.float32)
    store.upsert(Rows(0, pa.array([0, 1]), vectors))
    (hits,) = store.search({0: np.array([[1e20, 1e20, 1e19, 0]], dtype=np.float32)}, 2)
    assert (hits.ids.to_pylist(), hits.scores.tolist()) == ([0, 1], [np.inf, np.float32(1e20)])


def test_rows_that_rounding_cannot_tell_apart_are_scored_by_themselves(store: Store) -> None:
    """A thousand rows nearly alike."""
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
    with pytest.raises(StoreError, match="read or written"):
        open_store(f"sqlite:{tmp_path}#emb", create="int64")


def test_a_full_disk_undoes_the_whole_write(store: Any) -> None:
    store.upsert(constant(range(10)))
    with store._writing() as view:
        view._ask("pragma max_page_count = 20")
    with pytest.raises(StoreError, match=r"full.*disk has space"):
        store.upsert(constant(range(5, 20_000), value=2.0))
    np.testing.assert_array_equal(store.fetch(range(10))[0].vectors, 1.0)
    assert store.count() == {0: 10}


def test_another_writer_is_waited_for_and_then_an_error(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.sqlite_store.WAIT", 0.05)
    late = pytest.raises(StoreError, match="Another process has been writing")
    address = store.address
    with open_store(address, create="int64") as other, store._writing(), late:
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


def test_rows_that_move_meanwhile_are_counted_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_space(Space(1, 4, "sha256:one"))
    store.upsert(constant(range(5)))
    count = SqliteStore._count
    with open_store(store.address, create="int64") as other:

        def count_and_move(self: SqliteStore, version: int) -> int:
            rows = count(self, version)
            other.upsert(Rows(1, pa.array(range(5)), np.ones((5, 4), np.float32)))
            return rows

        monkeypatch.setattr(SqliteStore, "_count", count_and_move)
        assert store.count() == {0: 5}
        assert store.count() == {1: 5}


def test_a_copy_without_a_log_gets_one_when_it_is_opened(store: Store, tmp_path: Path) -> None:
    """As by VACUUM INTO: its readers waited for its writers."""
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(tmp_path / "films.db")) as connection:
        connection.execute("vacuum into ?", [str(copy)])
    assert edited(copy, "pragma journal_mode") == [("delete",)]
    with open_store(f"sqlite:{copy}#emb"):
        assert edited(copy, "pragma journal_mode") == [("wal",)]


def test_one_file_has_several_stores_and_tables_of_others(store: Store, file: Path) -> None:
    store.upsert(constant(range(5)))
    edited(file, "create table prices (film, price)", "insert into prices values (1, 2)")
    with open_store(store.address.replace("#emb", "#people"), create="string") as people:
        people.add_space(Space(0, 2, "sha256:zero"))
        assert people.count() == {}
    # A name in other letters is the same store's.
    with open_store(store.address.replace("#emb", "#EMB"), create="int64") as other:
        assert other.count() == {0: 5}
    assert edited(file, "select * from prices") == [(1, 2)]


def test_a_table_of_somebody_else_is_refused_and_stays(store: Store, file: Path) -> None:
    for table in ("mine_record",):
        edited(file, f"create table {table} (name text)", f"insert into {table} values ('a')")
        with pytest.raises(StoreError, match=f"a table {table} "):
            open_store(store.address.replace("#emb", "#mine"), create="int64")
        assert edited(file, f"select * from {table}") == [("a",)]
        edited(file, f"drop table {table}")
    edited(file, "create table EMB_V7 (name text)")
    with pytest.raises(StoreError, match="a table emb_v7"):
        store.add_space(Space(7, 4, "sha256:seven"))
    assert list(store.spaces()) == [0]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            "update emb_record set record = replace(record, 'version\": 1', 'version\": 9')",
            "format 9",
        ),
        ("update emb_record set record = replace(record, 'int64', 'date')", "is damaged"),
        ("delete from emb_record", "is damaged"),
        ("alter table emb_record add column more", "did not write"),
    ],
)
def test_a_record_that_is_not_ours_or_damaged_is_an_error(
    store: Store, file: Path, change: str, error: str
) -> None:
    edited(file, change)
    with pytest.raises((StoreError, FormatError), match=error):
        open_store(store.address)


@pytest.fixture
def lance(tmp_path: Path) -> Iterator[LanceStore]:
    with LanceStore.open(f"lance:{tmp_path}/lance#emb", "int64") as opened:
        opened.add_space(Space(0, 4, "sha256:zero"))
        yield opened


@pytest.fixture
def own_database(tmp_path: Path) -> Any:
    import lancedb

    return lancedb.connect(tmp_path / "lance")


def test_small_scores_keep_their_digits(lance: LanceStore) -> None:
    tiny = np.array([[3e-7, 0, 0, 0], [2e-7, 0, 0, 0]], dtype=np.float32)
    lance.upsert(Rows(0, pa.array([1, 2]), tiny))
    (hits,) = lance.search({0: np.array([[1e-3, 0, 0, 0]], dtype=np.float32)}, 2)
    assert hits.ids.to_pylist() == [1, 2]
    np.testing.assert_allclose(hits.scores, [3e-10, 2e-10], rtol=1e-6)


def test_a_view_reads_the_rows_of_a_search_once_and_verifies_them(
    lance: LanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    lance.upsert(Rows(0, pa.array(range(40)), vectors))
    lance.add_space(Space(1, 4, "sha256:one"))
    lance.upsert(Rows(1, pa.array(range(20)), -vectors[:20]))
    query, read = vectors[:1], list[int]()
    get = LanceStore._get

    def counted(self: LanceStore, version: int, ids: pa.Array) -> Any:
        read.append(len(ids))
        yield from get(self, version, ids)

    def work(view: Any) -> dict[int, list[float]]:
        (hits,) = view.search({0: query, 1: query}, 10)
        asked = pa.concat_arrays([hits.ids, pa.array([99, 39, 0])])
        return {
            i: v
            for rows in view.fetch(asked)
            for i, v in zip(rows.ids.to_pylist(), rows.vectors.tolist(), strict=True)
        }

    (hits,) = lance.search({0: query, 1: query}, 10)
    expected = np.concatenate([-vectors[:20], vectors[20:]])
    assert hits.ids.to_pylist() == np.argsort(-(expected @ query[0]))[:10].tolist()
    monkeypatch.setattr(LanceStore, "_get", counted)
    found = lance.read_consistently(work)
    assert found == {i: expected[i].tolist() for i in {*hits.ids.to_pylist(), 39, 0}}
    assert 0 < max(read) <= 3
    lance._table(0).update(where="id = 25", values={"vector": [9.0] * 4})
    with pytest.raises(IntegrityError, match="damaged"):
        lance.read_consistently(
            lambda view: view.fetch(view.search({0: query, 1: query}, 40)[0].ids)
        )


def test_old_versions_of_a_table_do_not_pile_up(
    lance: LanceStore, own_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lance_store, "KEPT", timedelta(milliseconds=1))
    monkeypatch.setattr(lance_store, "COMPACTED_AFTER", 8)
    for i in range(20):
        lance.upsert(constant(range(2), value=i))
    assert len(own_database.open_table("emb-v0").list_versions()) < 12
    np.testing.assert_array_equal(lance.fetch([0, 1])[0].vectors, 19)


def test_a_later_format_and_a_damaged_file_are_errors(lance: LanceStore, tmp_path: Path) -> None:
    lance.upsert(constant(range(5)))
    meta = tmp_path / "lance/emb.json"
    text = meta.read_text()
    meta.write_text(text.replace('"format_version": 1', '"format_version": 9'))
    with pytest.raises(FormatError, match="format 9"):
        open_store(lance.address)
    meta.write_text(text[:-5])
    with pytest.raises(StoreError, match="cannot be read"):
        open_store(lance.address)
    meta.write_text(text)
    for file in (tmp_path / "lance/emb-v0.lance/data").iterdir():
        file.write_bytes(file.read_bytes()[:-8] + b"\0" * 8)
    with pytest.raises(StoreError, match="read or written"):
        open_store(lance.address).fetch([1])


def test_a_table_of_another_owner_is_refused_and_stays(
    lance: LanceStore, own_database: Any
) -> None:
    """It was dropped: a table of that name was taken for what a killed writer had left."""
    mine = own_database.create_table("emb-v7", pa.table({"name": ["a"], "price": [1.0]}))
    with pytest.raises(StoreError, match="a table emb-v7"):
        lance.add_space(Space(7, 4, "sha256:seven"))
    assert mine.count_rows() == 1
    assert list(lance.spaces()) == [0]
    # One without rows that a killed writer left is made anew.
    own_database.create_table("emb-v3", schema=own_database.open_table("emb-v0").schema)
    lance.add_space(Space(3, 6, "sha256:three"))
    lance.upsert(constant(range(5), 3, 6))
    assert lance.count() == {3: 5}


def test_one_process_writes_at_a_time(
    lance: LanceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lance_store, "WAIT", 0.01)
    with (
        FileLock(tmp_path / "lance/emb.lock"),
        pytest.raises(StoreError, match="Another process has been writing"),
    ):
        lance.upsert(constant(range(2)))


class PanicException(BaseException):
    pass


def test_an_error_or_panic_of_lancedb_is_one_of_the_store_and_others_pass() -> None:
    for error in (ValueError("lost\n  a  file"), PanicException("lost a file")):
        with pytest.raises(StoreError, match="lost a file"), errors_as_store_errors("lance:x"):
            raise error
    for other in (DataError("mine"), KeyboardInterrupt(), GeneratorExit()):
        with pytest.raises(type(other)), errors_as_store_errors("lance:x"):
            raise other


def filled(folder: Path, vectors: Floats) -> LanceStore:
    lance = LanceStore.open(f"lance:{folder}/lance#emb", "int64")
    rows = Rows(0, pa.array(range(len(vectors))), vectors)
    lance.load(Space(0, vectors.shape[1], "sha256:0"), [rows])
    return lance


QUERY = {0: np.ones((1, DIMS[0]), np.float32)}


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_a_vector_that_is_not_finite_is_refused_wherever_it_is(tmp_path: Path, bad: float) -> None:
    values = vectors_of(0, 20).numpy().astype(np.float64)
    values[7, 2] = bad
    types = {"e0": pa.float64()}
    address = table_of("lance-table", tmp_path, {"id": range(20)}, values, types)
    with open_store(address) as lance:
        for read in (
            lambda: lance.fetch([7]),
            lambda: list(lance.scan()),
            lambda: lance.search(QUERY, 1),
        ):
            with pytest.raises(IntegrityError, match="not finite"):
                read()


def test_a_view_is_of_one_moment_and_the_next_sees_what_was_written(tmp_path: Path) -> None:
    import lancedb

    address = table_of("lance-table", tmp_path, {"id": range(20)}, vectors_of(0, 20).numpy())
    with open_store(address) as lance:

        def look(view: Any) -> int:
            before = view.count()[0]
            lancedb.connect(tmp_path).open_table("mine").delete("id >= 10")
            assert len(view.search(QUERY, 99)[0]) == before
            return int(before)

        assert lance.read_consistently(look) == 20
        assert lance.read_consistently(lambda view: view.count()) == {0: 10}


def test_a_table_that_was_made_anew_is_compared_again(tmp_path: Path) -> None:
    """It has lower version numbers than the one before, and then the same."""
    import lancedb

    lineage, ids = lineage_of(tmp_path / "line", 1), pa.array(range(300))
    vectors = vectors_of(0).numpy()
    address = table_of("lance-table", tmp_path / "own", {"id": range(300)}, vectors)
    database = lancedb.connect(tmp_path / "own")
    mine = database.open_table("mine")
    mine.add(pa.table({"id": pa.array([999]), "e0": listed(vectors[:1])}))
    mine.delete("id = 999")

    def made_anew(values: np.ndarray) -> None:
        database.drop_table("mine")
        database.create_table("mine", pa.table({"id": ids, "e0": listed(values)}))

    with closing(Reader.open(lineage, {"object": address})) as reader:
        before = reader.search(vectors[7], 3)[0].ids
        for _ in range(2):
            made_anew(-vectors)
            for read in (
                lambda: reader.search(vectors[7], 3),
                lambda: reader.embed([7]),
                lambda: list(reader.store().scan()),
            ):
                with pytest.raises(IntegrityError, match="200 of 200 vectors"):
                    read()
            made_anew(vectors)
            assert reader.search(vectors[7], 3)[0].ids.equals(before)
            assert reader.embed([7]).sources.tolist() == [0]
        database.drop_table("mine")
        for read in (lambda: reader.search(vectors[7], 3), lambda: reader.embed([7])):
            with pytest.raises((DataError, StoreError)):
                read()
