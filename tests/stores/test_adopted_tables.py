"""Tables and collections of one's own are read alike, whatever program keeps them, and reading
writes nothing; whatever a value is that a filter has, it stays a value, in every database."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.command import Command, evergram
from tests.support.lineages import DIMS, vectors_of
from tests.support.own_tables import KINDS, OWN, listed, own_store, quoted, table_of
from tests.support.postgres_server import postgres

from evergram.errors import DataError, IntegrityError, StoreError
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
def test_a_table_has_no_side_and_gets_no_index(
    kind: str, tmp_path: Path, evergram: Command
) -> None:
    address = own_store(kind, tmp_path / "own", 10)
    with open_store(address) as store:
        assert not isinstance(store, Store)
        assert store.side is None
    assert "at most fills a column" in evergram.refused("store", "index", address)


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
    import lancedb
    from qdrant_client import models

    if kind == "pgvector-table":
        postgres().sql(f"insert into {table(address)} select * from {table(address)} where id = 3")
    elif kind == "lance-table":
        row = pa.table({"id": pa.array([3]), "e0": listed(VECTORS[:1])})
        lancedb.connect(address[12:].partition("#")[0]).open_table("mine").add(row)
    else:
        point = models.PointStruct(id=9, vector={"e0": [1.0] * 6}, payload={"id": 3})
        store._ask("upsert", "mine", [point])  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_an_id_is_none_and_an_id_that_comes_to_be_twice_is_refused(
    kind: str, tmp_path: Path
) -> None:
    address = table_of(kind, tmp_path / "none", {"id": [4, None, 2, None, 0]}, VECTORS[:5])
    with open_store(f"{address}&id=id") as store:
        assert store.count() == {0: 3}
        assert sorted(store.search(QUERY, 9)[0].ids.to_pylist()) == [0, 2, 4]
    address = f"{table_of(kind, tmp_path, {'id': range(5)}, VECTORS[:5])}&id=id"
    with open_store(address) as store:
        repeated(kind, address, store)
        assert isinstance(store, AdoptedStore)
        for read in (lambda: store.fetch([3]), lambda: store.search(QUERY, 9)):
            with pytest.raises((IntegrityError, StoreError), match="twice"):
                read()


@pytest.mark.parametrize("column", ["id", "e0", "extra", "id as text"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_goes_or_changes_while_a_store_is_open(
    kind: str, column: str, tmp_path: Path
) -> None:
    import lancedb

    address = table_of(kind, tmp_path, {"id": NUMBERS, "extra": NUMBERS}, VECTORS[:20])
    with open_store(f"{address}&id=id&filter=extra") as store:
        if kind == "qdrant-collection":
            store._ask("delete_collection", "mine")  # type: ignore[attr-defined]
        elif kind == "lance-table" and column == "id as text":
            texts = pa.table({"id": [*"abc"], "extra": [*range(3)], "e0": listed(VECTORS[:3])})
            lancedb.connect(tmp_path).create_table("mine", texts, mode="overwrite")
        elif kind == "lance-table":
            lancedb.connect(tmp_path).open_table("mine").drop_columns([column])
        else:
            change = f"drop column {column}"
            change = "alter column id type text using id" if " " in column else change
            postgres().sql(f"alter table {table(address)} {change}")
        reads: list[Callable[[], Any]] = [
            *(store.spaces, lambda: store.read_consistently(lambda v: v.search(QUERY, 3))),
            *(lambda: store.search(QUERY, 3, ids=[1, 2]), lambda: store.fetch([1, 2])),
        ]
        for read in reads:
            with pytest.raises((DataError, StoreError), match=r"not have|no collection|string now"):
                read()


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


# What addresses name after `table=` or `collection=`, and what the error names; other columns.
ANY = [
    *(("mine&v0=none", "none"), ("none&v0=e0", "none"), ("mine&v0=title", "title")),
    *(("mine&v0=e0&filter=x", "'x'"), ("mine&v0=e0&filter=title,e0", "e0")),
]
SHAPES: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "pgvector-table": ({"price": [1.0] * 3}, [*ANY, ("mine&v0=e0&id=price", "price")]),
    "lance-table": (
        {
            "whole": pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2)),
            "large": pa.array(range(3), pa.uint64()),
            "money": pa.array([1, 2, 3]).cast(pa.decimal128(21, 2)).cast(pa.decimal128(9, 2)),
        },
        [
            *(*ANY, ("mine&v0=whole", "whole"), ("mine&v0=e0&id=large", "large")),
            *(("mine&v0=e0&filter=money", "money"), ("mine&v0=a`b", "`")),
        ],
    ),
    "qdrant-collection": (
        {"m": [[1, 2]] * 3, "sold": [True] * 3},
        [
            *(*ANY[:2], ("mine&v0=", "e0"), ("mine&v0=e0&id=m", "'m'")),
            *(("mine&v0=e0&id=sold", "'sold'"), ("mine&v0=e0&id=z", "'z'")),
        ],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_address_that_does_not_fit_the_table_is_refused_by_the_name(
    kind: str, tmp_path: Path
) -> None:
    more, addresses = SHAPES[kind]
    more = {"title": ["x"] * 3, **more}
    types = {key: value.type for key, value in more.items() if isinstance(value, pa.Array)}
    columns: dict[str, Any] = {"id": [0, 1, 2], **more}
    address = table_of(kind, tmp_path / "own", columns, VECTORS[:3], types)
    place, _, own = address.partition("&")[0].rpartition("=")
    for rest, name in addresses:
        with pytest.raises((DataError, StoreError, IntegrityError), match=name):
            open_store(f"{place}={rest.replace('mine', own)}")
    if kind != "pgvector-table":
        with pytest.raises(DataError, match="no folder"):
            open_store(address.replace("/own#", "/none#"))
        assert [path.name for path in tmp_path.iterdir()] == ["own"]


WORDS = ["a", "b'c", "' or true --", "\\'", "x\ny", "", "%", "é", '"', "`", "a'); drop table t; --"]
SMALL = [-128, -3, -1, 0, 1, 2, 100, 127]
COLUMNS: dict[str, list[Any]] = {
    "id": list(range(40)),
    "kind": [["news", "sport", "o'clock; --"][i % 3] for i in range(40)],
    "text": [WORDS[i % len(WORDS)] for i in range(40)],
    "small": [SMALL[i % len(SMALL)] for i in range(40)],
    "year": [2000 + i % 20 for i in range(40)],
    "price": [i / 10 for i in range(40)],
    "sold": [i % 2 == 0 for i in range(40)],
    "day": [date(2026, 1, 1) + timedelta(i) for i in range(40)],
    "at": [datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(i) for i in range(40)],
}


@pytest.fixture(scope="module", params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("filtered")
    types = {"pgvector-table": {"small": "smallint", "at": "timestamptz"}}.get(request.param, {})
    columns = {**COLUMNS, "title": COLUMNS["kind"]}
    address = table_of(request.param, folder, columns, vectors_of(0, 40).numpy(), types)
    with open_store(f"{address}&id=id&filter={','.join(COLUMNS)}") as opened:
        yield opened


def ids(store: Any, asked: Any) -> list[int]:
    return sorted(store.where(asked).search(QUERY, 99)[0].ids.to_pylist())


def having(column: str, *values: Any) -> list[int]:
    return [i for i, value in enumerate(COLUMNS[column]) if value in values]


ACCEPTED: list[tuple[dict[str, Any], list[int]]] = [
    ({"kind": "o'clock; --"}, having("kind", "o'clock; --")),
    ({"kind": ["news", "o'clock; --"], "year": [2000, 2003]}, [0, 3, 20, 23]),
    ({"day": {"gte": "2026-01-31", "lt": "2026-02-02"}}, [30, 31]),
    ({"at": {"gt": "2026-02-07T12:00:00+01:00", "lte": "2026-02-08 12:00"}}, [37, 38]),
    ({"price": [0.3, 1]}, [3, 10]),
    ({"price": {"gt": -1e39, "lt": 0.35}}, [0, 1, 2, 3]),
    ({"year": 2000.0}, [0, 20]),
    *(({"year": number}, []) for number in (2000.5, 2**53 + 1, 2**63 - 1)),
    ({"year": {"gt": 2018.5, "lt": 10**9}}, [19, 39]),
    ({"sold": False, "price": {"lt": 0.35}}, [1, 3]),
    ({"sold": [True, False]}, list(range(40))),
]


def test_filters_of_every_form(store: Any) -> None:
    accepted = ACCEPTED
    if store.kind == "qdrant-collection":
        # Its payload has no types: a value of another type is in no point.
        accepted = [*accepted, ({"year": "2001"}, []), ({"kind": 3}, [])]
    for asked, expected in accepted:
        assert ids(store, asked) == expected, asked


ANYWHERE: list[Any] = [
    *({}, {str(i): 1 for i in range(33)}, {1: 1}, {"a\0": 1}, {"kind": []}, {"title": "x"}),
    *({"year": list(range(1001))}, {"kind": [1, "x"]}, {"sold": [1, True]}, {"year": {}}),
    *({"year": {"near": 1}}, {"year": {"gte": [1]}}, {"kind": None}, {"year": float("nan")}),
    *({"year": 2**63}, {"kind": "x\0"}, {"kind": "\ud800"}, {"sold": {"gt": True}}),
    *({"day": {"gte": "yesterday or so"}}, {"at": {"gte": "noon"}}, "", 3, "1 = 1", ("a", "b")),
    *({'kind" = 1 or "kind': "a"}, {"e0": "a"}),
]
TYPED: list[Any] = [
    *({"kind": 1}, {"year": "1"}, {"small": True}, {"day": {"gt": 3}}, {"day": "2020-13-99"}),
]
REFUSED: dict[str, list[Any]] = {
    "pgvector-table": [*TYPED, {"day": "2026-W05-6"}],
    "lance-table": [*TYPED, {"day": "2026-01-31T12:00:00"}],
    "qdrant-collection": [{"kind": {"gt": "a"}}, {"year": {"gte": 2**53 + 1}}],
}


def test_what_cannot_be_compared_is_refused(store: Any) -> None:
    for asked in (*ANYWHERE, *REFUSED[store.kind]):
        with pytest.raises((DataError, StoreError)):
            ids(store, asked)
    assert store.count() == {0: 40}


SIGNS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
TEXT = st.one_of(
    st.sampled_from(WORDS),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    st.text(alphabet="'\"`\\;-() /*%or tue", max_size=20),
)
NUMBER = st.one_of(
    st.integers(-300, 300),
    st.floats(-300, 300, allow_nan=False),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(SMALL),
)
generated = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@generated
@given(st.lists(TEXT, min_size=1, max_size=4))
@example(WORDS[:4])
def test_a_text_matches_itself_alone(store: Any, texts: list[str]) -> None:
    assert ids(store, {"text": texts}) == having("text", *texts)
    if store.kind == "lance-table":
        for sign, compare in SIGNS.items():
            expected = [
                i
                for i, text in enumerate(COLUMNS["text"])
                if compare(text.encode(), texts[0].encode())
            ]
            assert ids(store, {"text": {sign: texts[0]}}) == expected


@generated
@given(st.lists(NUMBER, min_size=1, max_size=4), st.sampled_from(["in", *SIGNS]))
@example([2, 1.5], "in")
@example([2**63 - 1], "gt")
@example([-(2**63)], "gte")
@example([-128], "lt")
@example([127.0], "lte")
@example([1e300], "lt")
def test_numbers_are_compared_as_python_compares_them(
    store: Any, numbers: list[float], sign: str
) -> None:
    if sign == "in":
        assert ids(store, {"small": numbers}) == having("small", *numbers)
        return
    number, small = numbers[0], COLUMNS["small"]
    if store.kind == "qdrant-collection" and isinstance(number, int) and abs(number) > 2**53:
        return  # it compares doubles, and refuses
    expected = [i for i, value in enumerate(small) if SIGNS[sign](value, number)]
    assert ids(store, {"small": {sign: number}}) == expected
