"""LanceDB tables of every odd sort: names that need quotes, other types, tables that change."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.own_stores import own_store

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.retrieval.reader import Reader
from evergram.stores.lance.adopted_lance import AdoptedLanceTable
from evergram.stores.open_store import open_store

QUERY = {0: np.ones((1, DIMS[0]), np.float32)}
KIND = "lance-table"


def vectors(
    rows: int = 20, kind: pa.DataType | None = None, values: np.ndarray | None = None
) -> pa.Array:
    block = vectors_of(0, rows).numpy() if values is None else values
    flat = pa.array(block.reshape(-1)).cast(kind or pa.float32(), safe=False)
    return pa.FixedSizeListArray.from_arrays(flat, block.shape[1])


def table(folder: Path, name: str = "mine", **columns: Any) -> Any:
    """Make a table, with the columns `id` and `e0` unless they are among the others."""
    rows = len(next(iter(columns.values()))) if columns else 20
    every = {"id": pa.array(range(rows)), "e0": vectors(rows), **columns}
    return lancedb.connect(folder).create_table(name, pa.table(every), on_bad_vectors="null")


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.string(), pa.large_string()]
)
def test_ids_of_whole_numbers_and_texts(kind: pa.DataType, tmp_path: Path) -> None:
    number = pa.types.is_integer(kind)
    ids = list(range(20)) if number else [f"it's {i}" for i in range(18)] + ["", "nul\0x"]
    table(tmp_path, id=pa.array(ids, kind))
    with open_store(f"lance-table:{tmp_path}#table=mine&v0=e0") as store:
        asked: list[Any] = [3, 19, 2**62, -1] if number else ["it's 3", "nul\0x", "' or true --"]
        (rows,) = store.fetch(asked)
        assert sorted(rows.ids.to_pylist()) == sorted(asked[:2])
        order = [ids.index(key) for key in rows.ids.to_pylist()]
        assert np.array_equal(rows.vectors, vectors_of(0, 20).numpy()[order])
        assert len(store.search(QUERY, 30)[0]) == 20
        assert len(store.search(QUERY, 30, ids=asked)[0]) == 2
        assert sum(len(rows) for rows in store.scan(size=7)) == 20


@pytest.mark.parametrize("kind", [pa.float16(), pa.float64()])
def test_vectors_of_other_precisions(kind: pa.DataType, tmp_path: Path) -> None:
    table(tmp_path / "own", id=pa.array(range(300)), e0=vectors(300, kind))
    lineage = lineage_of(tmp_path / "line", 1, canaries=2)
    address = f"lance-table:{tmp_path}/own#table=mine&v0=e0"
    with closing(Reader.open(lineage, {"object": address})) as reader:
        query = vectors_of(0).numpy()[17]
        assert reader.search(query, 1, 0, metric="l2")[0].ids.to_pylist() == [17]


@pytest.mark.parametrize(
    "name",
    ["My docs", 'a"b', "o'clock", "50% off", "naïve", "x; drop table y; --", "{a}", "SELECT"],
)
def test_names_that_need_quotes(name: str, tmp_path: Path) -> None:
    columns = {
        f"{name} id": pa.array(range(20)),
        f"{name} e": vectors(),
        f"{name} c": pa.array(["news", "x"] * 10),
    }
    lancedb.connect(tmp_path).create_table("mine", pa.table(columns))
    escaped = name.replace("%", "%25")
    address = f"lance-table:{tmp_path}#table=mine&id={escaped} id&v0={escaped} e&filter={escaped} c"
    with open_store(address) as store:
        assert sorted(store.search(QUERY, 30)[0].ids.to_pylist()) == list(range(20))
        assert len(store.where({f"{name} c": "news"}).search(QUERY, 30)[0]) == 10
        assert sum(len(rows) for rows in store.scan(size=6)) == 20
        assert len(store.fetch([1, 2])[0]) == 2
        with open_store(store.address) as again:
            assert again.count() == {0: 20}


def test_a_null_id_is_no_row_and_an_id_twice_is_refused(tmp_path: Path) -> None:
    table(tmp_path, id=pa.array([0, None, 2, None, 4]))
    address = f"lance-table:{tmp_path}#table=mine&v0=e0"
    with open_store(address) as store:
        assert store.count() == {0: 3}
        assert sorted(store.search(QUERY, 9)[0].ids.to_pylist()) == [0, 2, 4]
        # An id that comes to be twice later.
        more = pa.table({"id": pa.array([2]), "e0": vectors(1)})
        lancedb.connect(tmp_path).open_table("mine").add(more)
        for read in (lambda: store.fetch([2]), lambda: store.search(QUERY, 9)):
            with pytest.raises((IntegrityError, StoreError), match="twice"):
                read()
    with pytest.raises(StoreError, match="has the id 2 twice"):
        open_store(address)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_a_vector_that_is_not_finite_is_refused_wherever_it_is(tmp_path: Path, bad: float) -> None:
    values = vectors_of(0, 20).numpy().astype(np.float64)
    values[7, 2] = bad
    table(tmp_path, id=pa.array(range(20)), e0=vectors(20, pa.float64(), values))
    with open_store(f"lance-table:{tmp_path}#table=mine&v0=e0") as store:
        for read in (
            lambda: store.fetch([7]),
            lambda: list(store.scan()),
            lambda: store.search(QUERY, 1),
        ):
            with pytest.raises(
                IntegrityError, match=r"vector of id 7 .* is not finite; correct it"
            ):
                read()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("#table=mine&v0=none", "'none', which the table does not have; it has category, e0"),
        ("#table=mine&v0=category", "'category' .* is of type string; for vectors"),
        ("#table=mine&v0=loose", "is of type list<item: float>; for vectors"),
        ("#table=mine&v0=whole", r"is of type fixed_size_list<item: int32>\[2\]; for vectors"),
        ("#table=mine&v0=e0&id=e0", "for ids it must be"),
        ("#table=mine&v0=e0&id=large", "of type uint64; for ids it must be"),
        ("#table=mine&v0=e0&filter=x", "'x', which the table does not have"),
        ("#table=mine&v0=e0&filter=category,e0", "'e0' .* which no filter compares; filter= names"),
        ("#table=mine&v0=e0&filter=price", r"'price' .* of type decimal128\(9, 2\), which no"),
        ("#table=mine&v0=e0&filter=loose", "'loose' .* which no filter compares"),
        ("#table=none&v0=e0", "no table 'none' in the folder .*; it has mine"),
        ("#table=../mine&v0=e0", "no table"),
        ("#table=mine&v0=a`b", "has a ` in its name"),
    ],
)
def test_addresses_that_do_not_fit_the_table(more: str, words: str, tmp_path: Path) -> None:
    table(
        tmp_path,
        category=pa.array(["x"] * 3),
        loose=pa.array([[1.0]] * 3, pa.list_(pa.float32())),
        whole=pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2)),
        large=pa.array(range(3), pa.uint64()),
        price=pa.array([1, 2, 3]).cast(pa.decimal128(21, 2)).cast(pa.decimal128(9, 2)),
    )
    with pytest.raises((DataError, StoreError), match=words):
        open_store(f"lance-table:{tmp_path}{more}")


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no folder"):
        open_store(f"lance-table:{tmp_path}/none#table=mine&v0=e0")
    for kind, names in (("lance-table", "table=mine&v0=e0"), ("lance", "mine")):
        with pytest.raises(DataError, match=f"A store {kind}: is in a folder .* s3:// .* not read"):
            open_store(f"{kind}:s3://bucket/{tmp_path}?key=secret#{names}", create=None)
    with pytest.raises(DataError, match="v0=COLUMN"):
        open_store("lance-table:#table=mine&v0=e0")
    table(tmp_path)
    with pytest.raises(StoreError, match="only reads"):
        open_store(f"lance-table:{tmp_path}#table=mine&v0=e0", create="int64")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.lance"]


def test_a_column_that_goes_while_a_store_is_open(tmp_path: Path) -> None:
    mine = table(tmp_path, extra=pa.array(range(20)))
    with open_store(f"lance-table:{tmp_path}#table=mine&v0=e0&filter=extra") as store:
        mine.drop_columns(["extra"])
        for read in (store.spaces, lambda: store.read_consistently(lambda v: v.search(QUERY, 3))):
            with pytest.raises(StoreError, match="'extra', which the table does not have"):
                read()


def test_a_view_is_of_one_moment_and_the_next_sees_what_was_written(tmp_path: Path) -> None:
    mine = table(tmp_path)
    with open_store(f"lance-table:{tmp_path}#table=mine&v0=e0") as store:

        def look(view: Any) -> int:
            before = view.count()[0]
            mine.delete("id >= 10")
            assert len(view.search(QUERY, 99)[0]) == before
            return int(before)

        assert store.read_consistently(look) == 20
        assert store.read_consistently(lambda view: view.count()) == {0: 10}


def test_a_table_that_was_written_is_compared_again(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", 1)
    ids, rows = pa.array(range(300)), vectors(300)
    table(tmp_path / "own", id=ids, e0=rows)
    address = f"lance-table:{tmp_path / 'own'}#table=mine&v0=e0"
    with closing(Reader.open(lineage, {"object": address})) as reader:
        query = vectors_of(0)[7].numpy()
        before = reader.search(query, 3)[0].ids
        database = lancedb.connect(tmp_path / "own")
        other = pa.table({"id": ids, "e0": vectors(values=-vectors_of(0, 300).numpy())})
        database.create_table("mine", other, mode="overwrite")
        for _ in range(2):
            with pytest.raises(IntegrityError, match="200 of 200 vectors"):
                reader.search(query, 3)
            with pytest.raises(IntegrityError, match="200 of 200 vectors"):
                reader.embed([7])
        again = pa.table({"id": ids, "e0": rows})
        mine = database.create_table("mine", again, mode="overwrite")
        assert reader.search(query, 3)[0].ids.equals(before)
        mine.add(pa.table({"id": pa.array([7]), "e0": vectors(1)}))
        with pytest.raises(StoreError, match="has the id 7 twice"):
            reader.search(query, 1)


@pytest.mark.parametrize("writes", [0, 3])
def test_a_table_that_was_made_anew_is_compared_again(writes: int, tmp_path: Path) -> None:
    """It has the version numbers of the one before, or lower ones."""
    lineage = lineage_of(tmp_path / "line", 1)
    ids = pa.array(range(300))
    mine = table(tmp_path / "own", id=ids, e0=vectors(300))
    for _ in range(writes):
        mine.add(pa.table({"id": pa.array([999]), "e0": vectors(1)}))
        mine.delete("id = 999")
    database = lancedb.connect(tmp_path / "own")
    address = f"lance-table:{tmp_path / 'own'}#table=mine&v0=e0"
    with closing(Reader.open(lineage, {"object": address})) as reader:
        query = vectors_of(0)[7].numpy()
        before = reader.search(query, 3)[0].ids
        for _ in range(3):
            database.drop_table("mine")
            other = vectors(values=-vectors_of(0, 300).numpy())
            database.create_table("mine", pa.table({"id": ids, "e0": other}))
            for read in (
                lambda: reader.search(query, 3),
                lambda: reader.embed([7]),
                lambda: list(reader.store().scan()),
            ):
                with pytest.raises(IntegrityError, match="200 of 200 vectors"):
                    read()
            database.drop_table("mine")
            database.create_table("mine", pa.table({"id": ids, "e0": vectors(300)}))
            assert reader.search(query, 3)[0].ids.equals(before)
            assert reader.embed([7]).sources.tolist() == [0]
            (rows,) = reader.store().scan()
            assert len(rows) == 300
        database.drop_table("mine")
        for read in (lambda: reader.search(query, 3), lambda: reader.embed([7])):
            with pytest.raises((DataError, StoreError)):
                read()


def test_some_vectors_of_a_new_table_may_be_null(tmp_path: Path) -> None:
    """docs/stores.md says both ways, as LanceDB refuses the plain one."""
    half = pa.array([[1.0] * 300] * 5 + [None] * 5, pa.list_(pa.float32(), 300))
    data = pa.table({"id": range(10), "vector": half})
    database = lancedb.connect(tmp_path)
    database.create_table("filled", data, on_bad_vectors="null")
    database.create_table("added", schema=data.schema).add(data)
    for name in ("filled", "added"):
        with open_store(f"lance-table:{tmp_path}#table={name}&v0=vector") as store:
            assert store.count() == {0: 5}


def test_filters_of_every_form(tmp_path: Path) -> None:
    days = np.datetime64("2026-01-01") + np.arange(40)
    table(
        tmp_path,
        kind=pa.array([["news", "sport", "o'clock; --"][i % 3] for i in range(40)]),
        year=pa.array([2000 + i % 20 for i in range(40)], pa.int16()),
        price=pa.array(np.arange(40) * 0.1, pa.float32()),
        sold=pa.array([i % 2 == 0 for i in range(40)]),
        day=pa.array(days),
        time=pa.array(days.astype("datetime64[us]"), pa.timestamp("us", "UTC")),
    )
    address = f"lance-table:{tmp_path}#table=mine&v0=e0&filter=kind,year,price,sold,day,time"
    with open_store(address) as store:

        def ids(asked: Any) -> list[int]:
            return sorted(store.where(asked).search(QUERY, 99)[0].ids.to_pylist())

        assert ids({"kind": "o'clock; --"}) == list(range(2, 40, 3))
        assert ids({"day": {"gte": "2026-01-31", "lt": "2026-02-02"}}) == [30, 31]
        assert ids({"time": {"gte": "2026-02-09T00:00:00+00:00"}}) == [39]
        assert ids({"price": [0.3, 1]}) == [3, 10]
        assert ids({"year": 2000.5}) == ids({"year": {"gt": 10**9}}) == []
        assert ids({"year": {"gt": 2018.5, "lt": 10**9}}) == [19, 39]
        assert ids({"sold": False, "price": {"lt": 0.35}}) == [1, 3]
        assert ids("kind = 'news' and year >= 2018 -- so") == [18, 39]
        for broken in ("kind = ", "true; drop", "none = 1"):
            with pytest.raises(DataError, match="LanceDB does not take the filter"):
                ids(broken)
        with pytest.raises(DataError, match="do not pair"):
            ids("true) or (true) and (")
        with pytest.raises(DataError, match="takes no list of values"):
            ids(("kind = %s", ["news"]))


def test_nothing_was_written(tmp_path: Path) -> None:
    address = own_store(KIND, tmp_path, 20)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with open_store(address) as store:
        assert isinstance(store, AdoptedLanceTable)
        store.read_consistently(lambda view: view.search(QUERY, 3))
        store.fetch([1])
        store.where({"category": "news"}).search(QUERY, 3)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("texts", [[f"0{i}" for i in range(20)], [f"id {i}" for i in range(20)]])
def test_ids_that_become_texts_while_the_table_is_open(texts: list[str], tmp_path: Path) -> None:
    table(tmp_path)
    with open_store(f"lance-table:{tmp_path}#table=mine&v0=e0") as store:
        assert isinstance(store, AdoptedLanceTable)
        assert len(store.search(QUERY, 3)[0]) == 3
        lancedb.connect(tmp_path).create_table(
            "mine", pa.table({"id": texts, "e0": vectors()}), mode="overwrite"
        )
        query = QUERY[0]
        for read in (
            lambda: store.search(QUERY, 3),
            lambda: store.search(QUERY, 3, ids=[1, 2]),
            lambda: store.nearest_by("l2", 0, query, 3, None),
            lambda: store.fetch([1, 2]),
            lambda: list(store.scan()),
            lambda: store.column_rows(0, None, 3),
            lambda: store.spaces(),
            lambda: store.where({"id": 3}),
        ):
            with pytest.raises(StoreError, match="are texts now, and were whole numbers"):
                read()
    with open_store(store.address) as again:
        assert len(again.search(QUERY, 3, ids=texts)[0]) == 3
