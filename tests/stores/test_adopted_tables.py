"""Tables and collections of one's own are read alike, whatever program keeps them, and never
written."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from qdrant_client import models
from tests.support.command import Command, evergram
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.own_tables import KINDS, OWN, listed, own_store, quoted, table_of
from tests.support.postgres_server import postgres

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.fill import fill
from evergram.retrieval.stores_by_address import fill_stores
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.open_store import open_store
from evergram.stores.store import ReadableStore, Store

__all__ = ["evergram"]

QUERY = {0: np.ones((1, DIMS[0]), np.float32)}
VECTORS = vectors_of(0, 40).numpy()
TABLES = [kind for kind in KINDS if kind != "qdrant-collection"]


def table(address: str) -> str:
    """Return the name of a table in PostgreSQL."""
    return address.partition("#table=")[2].partition("&")[0]


@pytest.mark.parametrize("kind", sorted(OWN))
def test_every_write_is_refused(kind: str, tmp_path: Path, evergram: Command) -> None:
    address = own_store(kind, tmp_path / "own", 10)
    lineage = lineage_of(tmp_path / "line", canaries=2)
    with open_store(address) as store:
        assert not isinstance(store, Store)
        assert store.side is None
        writes: list[Callable[[], Any]] = [
            lambda: fill_stores(lineage, {"object": address}),
            lambda: fill(lineage, cast(Store, store), "object"),
            lambda: Backfill(lineage, store, "object"),
            lambda: open_store(address, create="int64"),
        ]
        for write in writes:
            with pytest.raises(StoreError, match="only reads"):
                write()
    assert "only reads" in evergram.refused("store", "index", address)
    assert not (tmp_path / "line" / "backfills").exists()


@pytest.mark.parametrize("kind", sorted(OWN))
def test_a_row_belongs_to_its_newest_vector(kind: str, tmp_path: Path) -> None:
    store = open_store(own_store(kind, tmp_path / "own", 20, {0: range(15), 1: range(5, 10)}))
    assert store.count() == {0: 10, 1: 5}
    assert store.filled() == store.spaces()
    assert {rows.version: len(rows) for rows in store.fetch(list(range(20)))} == {0: 10, 1: 5}
    ids = [i for rows in store.scan(0, size=3) for i in rows.ids.to_pylist()]
    assert sorted(ids) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    (hits,) = store.search(QUERY, 9, ids=[3, 7, 19, -1, 2**62])
    assert hits.ids.to_pylist() == [3]
    for _ in range(2):
        store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.count()


NUMBERS = list(range(20))
TEXTS = [f"it's {i}" for i in range(19)] + [""]
UUIDS = [str(uuid.UUID(int=i)) for i in range(20)]
IDS: list[tuple[str, str, Any, list[Any]]] = [
    *(("pgvector-table", "id", name, NUMBERS) for name in ("smallint", "bigint")),
    *(("pgvector-table", "id", name, TEXTS) for name in ("text", "varchar")),
    ("pgvector-table", "id", "uuid", UUIDS),
    *(("lance-table", "id", kind, NUMBERS) for kind in (pa.int8(), pa.int64(), pa.uint16())),
    *(("lance-table", "id", kind, TEXTS) for kind in (pa.string(), pa.large_string())),
    *(("qdrant-collection", "point", None, ids) for ids in (NUMBERS, UUIDS)),
    *(("qdrant-collection", "id", None, ids) for ids in ([-n for n in NUMBERS], TEXTS)),
]


@pytest.mark.parametrize(("kind", "column", "of", "ids"), IDS)
def test_ids_are_numbers_texts_and_uuids(
    kind: str, column: str, of: Any, ids: list[Any], tmp_path: Path
) -> None:
    address = table_of(kind, tmp_path, {column: ids}, VECTORS[:20], {column: of} if of else {})
    address += "&id=id" if (kind, column) == ("qdrant-collection", "id") else ""
    absent = [2**62, 99_999] if ids[3] in (3, -3) else ["' or true --", "x\0"]
    absent += [ids[4].replace("-", ""), ids[4].upper() + "A"] if ids is UUIDS else []
    with open_store(address) as store:
        assert store.id_type == (pa.int64() if isinstance(ids[0], int) else pa.string())
        asked = [ids[3], ids[19], *absent]
        (rows,) = store.fetch(asked)
        assert sorted(rows.ids.to_pylist()) == sorted(asked[:2])
        order = [ids.index(key) for key in rows.ids.to_pylist()]
        assert np.array_equal(rows.vectors, VECTORS[order])
        assert len(store.search(QUERY, 30)[0]) == 20
        assert len(store.search(QUERY, 30, ids=asked)[0]) == 2
        assert sum(len(rows) for rows in store.scan(size=7)) == 20


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("name", ["My docs", """50% naïve 'a"b' {c}'; drop table y; --"""])
def test_names_that_need_quotes(kind: str, name: str, tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {f"{name} id": NUMBERS, f"{name} c": ["news", "x"] * 10}
    address = table_of(kind, tmp_path, columns, VECTORS[:20], vector=f"{name} e")
    if kind == "pgvector-table":
        postgres().sql(f"drop table if exists {quoted(name)}")
        postgres().sql(f"alter table {table(address)} rename to {quoted(name)}")
        address = address.replace(table(address), name.replace("%", "%25"))
    escaped = name.replace("%", "%25")
    with open_store(f"{address}&id={escaped} id&filter={escaped} c") as store:
        assert sorted(store.search(QUERY, 30)[0].ids.to_pylist()) == NUMBERS
        assert len(store.where({f"{name} c": "news"}).search(QUERY, 30)[0]) == 10
        assert sum(len(rows) for rows in store.scan(size=6)) == 20
        assert len(store.fetch([1, 2])[0]) == 2
        with open_store(store.address) as again:
            assert again.count() == {0: 20}


def repeated(kind: str, address: str, store: ReadableStore) -> None:
    """Write the id 3 a second time."""
    if kind == "pgvector-table":
        postgres().sql(f"insert into {table(address)} select * from {table(address)} where id = 3")
    elif kind == "lance-table":
        row = pa.table({"id": pa.array([3]), "e0": listed(VECTORS[:1])})
        lancedb.connect(address[12:].partition("#")[0]).open_table("mine").add(row)
    else:
        point = models.PointStruct(id=9, vector={"e0": [1.0] * 6}, payload={"id": 3})
        store._driver._ask("upsert", "mine", [point])  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_that_comes_to_be_twice_is_refused(kind: str, tmp_path: Path) -> None:
    address = f"{table_of(kind, tmp_path, {'id': range(5)}, VECTORS[:5])}&id=id"
    with open_store(address) as store:
        repeated(kind, address, store)
        for read in (lambda: store.fetch([3]), lambda: store.search(QUERY, 9)):
            with pytest.raises((IntegrityError, StoreError), match="twice"):
                read()
    with pytest.raises((IntegrityError, StoreError), match="twice"):
        open_store(address)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_an_id_is_none(kind: str, tmp_path: Path) -> None:
    ids = [4, None, 2, None, 0]
    address = table_of(kind, tmp_path, {"id": ids}, VECTORS[:5])
    with open_store(f"{address}&id=id") as store:
        assert store.count() == {0: 3}
        assert sorted(store.search(QUERY, 9)[0].ids.to_pylist()) == [0, 2, 4]


@pytest.mark.parametrize("column", ["id", "e0", "extra"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_goes_while_a_store_is_open(kind: str, column: str, tmp_path: Path) -> None:
    address = table_of(kind, tmp_path, {"id": NUMBERS, "extra": NUMBERS}, VECTORS[:20])
    with open_store(f"{address}&id=id&filter=extra") as store:
        if kind == "pgvector-table":
            postgres().sql(f"alter table {table(address)} drop column {column}")
        elif kind == "lance-table":
            lancedb.connect(tmp_path).open_table("mine").drop_columns([column])
        else:
            store._driver._ask("delete_collection", "mine")  # type: ignore[attr-defined]
        for read in (store.spaces, lambda: store.read_consistently(lambda v: v.search(QUERY, 3))):
            with pytest.raises((DataError, StoreError), match=r"does not have|no collection"):
                read()


@pytest.mark.parametrize("kind", TABLES)
def test_ids_that_become_texts_while_the_table_is_open(kind: str, tmp_path: Path) -> None:
    address = table_of(kind, tmp_path, {"id": NUMBERS}, VECTORS[:20])
    with open_store(address) as store:
        assert isinstance(store, AdoptedStore)
        assert len(store.search(QUERY, 3)[0]) == 3
        if kind == "pgvector-table":
            name = table(address)
            postgres().sql(f"alter table {name} alter column id type text using '0' || id")
        else:
            texts = pa.table({"id": [f"0{i}" for i in range(20)], "e0": listed(VECTORS[:20])})
            lancedb.connect(tmp_path).create_table("mine", texts, mode="overwrite")
        for read in (
            lambda: store.search(QUERY, 3),
            lambda: store.search(QUERY, 3, ids=[1, 2]),
            lambda: store.fetch([1, 2]),
            lambda: list(store.scan()),
            lambda: store.spaces(),
        ):
            with pytest.raises(StoreError, match="are texts now"):
                read()
    with open_store(store.address) as again:
        assert len(again.search(QUERY, 3, ids=["01", "011"])[0]) == 2


@pytest.mark.parametrize("kind", TABLES)
def test_nothing_is_written(kind: str, tmp_path: Path) -> None:
    address = own_store(kind, tmp_path, 20)

    def state() -> Any:
        files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        if kind == "lance-table":
            return files
        return postgres().sql("select relname from pg_class where relkind in ('r', 'i') order by 1")

    before = state()
    with open_store(address) as store:
        store.read_consistently(lambda view: view.search(QUERY, 3))
        store.fetch([1])
        store.where({"category": "news"}).search(QUERY, 3)
    assert state() == before


SHAPES: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "pgvector-table": (
        {"title": ["x"] * 3, "price": [1.0] * 3},
        [
            ("#table=TABLE&v0=none", "none"),
            ("#table=TABLE&v0=title", "title"),
            ("#table=TABLE&v0=e0&id=price", "price"),
            ("#table=TABLE&v0=e0&filter=x", "'x'"),
            ("#table=TABLE&v0=e0&filter=title,e0", "e0"),
            ("#table=nowhere&v0=e0", "nowhere"),
        ],
    ),
    "lance-table": (
        {
            "title": ["x"] * 3,
            "price": [1.0] * 3,
            "whole": pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2)),
            "large": pa.array(range(3), pa.uint64()),
            "money": pa.array([1, 2, 3]).cast(pa.decimal128(21, 2)).cast(pa.decimal128(9, 2)),
        },
        [
            ("#table=mine&v0=none", "none"),
            ("#table=mine&v0=title", "title"),
            ("#table=mine&v0=whole", "whole"),
            ("#table=mine&v0=e0&id=large", "large"),
            ("#table=mine&v0=e0&filter=x", "'x'"),
            ("#table=mine&v0=e0&filter=title,e0", "e0"),
            ("#table=mine&v0=e0&filter=money", "money"),
            ("#table=none&v0=e0", "none"),
            ("#table=mine&v0=a`b", "`"),
        ],
    ),
    "qdrant-collection": (
        {"title": ["x"] * 3, "m": [[1, 2]] * 3, "sold": [True] * 3},
        [
            ("#collection=none&v0=e0", "none"),
            ("#collection=mine&v0=e9", "e9"),
            ("#collection=mine&v0=", "e0"),
            ("#collection=mine&v0=e0&id=title", "twice"),
            ("#collection=mine&v0=e0&id=m", "'m'"),
            ("#collection=mine&v0=e0&id=sold", "'sold'"),
            ("#collection=mine&v0=e0&id=z", "'z'"),
            ("#collection=mine&v0=e0&filter=z", "'z'"),
        ],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_address_that_does_not_fit_the_table_is_refused_by_the_name(
    kind: str, tmp_path: Path
) -> None:
    more, addresses = SHAPES[kind]
    types = {key: value.type for key, value in more.items() if isinstance(value, pa.Array)}
    columns: dict[str, Any] = {"id": [0, 1, 2], **more}
    address = table_of(kind, tmp_path / "own", columns, VECTORS[:3], types)
    place = address.partition("#")[0]
    for rest, name in addresses:
        with pytest.raises((DataError, StoreError, IntegrityError), match=name):
            open_store(place + rest.replace("TABLE", table(address)))
    if kind != "pgvector-table":
        with pytest.raises(DataError, match="no folder"):
            open_store(address.replace("/own#", "/none#"))
        assert [path.name for path in tmp_path.iterdir()] == ["own"]
