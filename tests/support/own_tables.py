"""Tables and collections of one's own, in every database that Evergram reads them from."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from psycopg.sql import Identifier
from tests.support.lineages import DIMS, vectors_of
from tests.support.postgres_server import postgres
from tests.support.store_kinds import without_waiting_for_the_disk

Vectors = npt.NDArray[Any]
# By name, a vector for each row, or None.
Named = Mapping[str, Sequence[Any]]

NUMBERS = itertools.count()
KINDS = ("pgvector-table", "lance-table", "qdrant-collection")
OWN = ("lance-table", "pgvector-table", "qdrant-collection, Dot", "qdrant-collection, Euclid")
SQL = {int: "bigint", str: "text", float: "real", bool: "boolean", datetime.date: "date"}


def category(row: int) -> str:
    return ("news", "sport", "o'clock; --")[row % 3]


def text_of(vector: npt.NDArray[np.float32]) -> str:
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def quoted(name: str) -> str:
    return Identifier(name).as_string(None)


def listed(vectors: Vectors, kind: pa.DataType | None = None) -> pa.Array:
    flat = pa.array(vectors.reshape(-1)).cast(kind or pa.float32(), safe=False)
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def own_store(
    kind: str,
    folder: Path,
    rows: int = 300,
    held: Mapping[int, range] | None = None,
    change: Callable[[int, Vectors], Vectors] = lambda version, vectors: vectors,
) -> str:
    """Make documents with a category, a year and vectors, and return the address, with filters.

    Args:
        kind: of OWN.
        held: version to the ids that have its vector; {0: all} by default.
        change: of the vectors [n, D] of a version, before they are written.
    """
    kind, _, distance = kind.partition(", ")
    columns, named, dims = _documents(rows, held, change)
    types = {
        "pgvector-table": {"id": "bigint primary key", "year": "int"},
        # Both precisions that keep a vector's digits.
        "lance-table": {"id": pa.int32(), "e1": pa.float64()},
        "qdrant-collection": {"distance": distance},
    }
    place = MAKERS[kind](folder, columns, named, types[kind], dims)
    return place + "".join(f"&v{key[1:]}={key}" for key in named) + "&filter=category,year"


def own_table(
    rows: int = 300,
    versions: Mapping[int, range] | None = None,
    *,
    name: str | None = None,
    dims: bool = True,
) -> str:
    """Make such a table in PostgreSQL and return its name.

    Args:
        dims: whether the columns say their dims.
    """
    columns, named, sizes = _documents(rows, versions, lambda version, vectors: vectors)
    types: dict[str, Any] = {"id": "bigint primary key", "year": "int", "table": name}
    types |= {} if dims else dict.fromkeys(named, "vector")
    return _pgvector(Path(), columns, named, types, sizes).partition("#table=")[2]


def _documents(
    rows: int, held: Mapping[int, range] | None, change: Callable[[int, Vectors], Vectors]
) -> tuple[dict[str, Sequence[Any]], dict[str, list[Any]], dict[str, int]]:
    held = {0: range(rows)} if held is None else held
    columns: dict[str, Sequence[Any]] = {
        "id": range(rows),
        "title": [f"Title {i}" for i in range(rows)],
        "category": [category(i) for i in range(rows)],
        "year": [2000 + i % 20 for i in range(rows)],
    }
    named = {}
    for version, ids in held.items():
        vectors = change(version, vectors_of(version, rows).numpy().copy())
        named[f"e{version}"] = [vectors[i] if i in ids else None for i in range(rows)]
    return columns, named, {f"e{version}": DIMS[version] for version in held}


def address_of(name: str, versions: Iterable[int] = (0,), more: str = "") -> str:
    columns = "".join(f"&v{v}=e{v}" for v in versions)
    return f"pgvector-table:{postgres().uri}#table={name}{columns}{more}"


def table_of(
    kind: str,
    folder: Path,
    columns: Mapping[str, Sequence[Any]],
    vectors: Vectors,
    types: Mapping[str, Any] | None = None,
    vector: str = "e0",
) -> str:
    """Make a table of these columns and one of vectors, and return its address, with `v0=`.

    Args:
        types: of a column, as the kind names them; by its values where none is given. Ids of
            Qdrant's points are those of a column "point".
    """
    place = MAKERS[kind](
        folder, columns, {vector: list(vectors)}, types or {}, {vector: vectors.shape[1]}
    )
    return f"{place}&v0={vector.replace('%', '%25')}"


def _pgvector(
    folder: Path,
    columns: Mapping[str, Sequence[Any]],
    vectors: Named,
    types: Mapping[str, Any],
    dims: Mapping[str, int],
) -> str:
    server, name = postgres(), types.get("table") or f"documents{next(NUMBERS)}"
    shapes = [f"{quoted(key)} {types.get(key) or SQL[type(v[0])]}" for key, v in columns.items()]
    shapes += [f"{quoted(key)} {types.get(key) or f'vector({dims[key]})'}" for key in vectors]
    server.sql("create extension if not exists vector")
    server.sql(f"create table {name} ({', '.join(shapes)})")
    texts = [[None if row is None else text_of(row) for row in v] for v in vectors.values()]
    with psycopg.connect(server.uri, autocommit=True) as connection:
        query = f"insert into {name} values ({', '.join(['%s'] * len(shapes))})"
        data = zip(*columns.values(), *texts, strict=True)
        connection.cursor().executemany(query.encode(), data)
    return f"pgvector-table:{server.uri}#table={name}"


def _lance(
    folder: Path,
    columns: Mapping[str, Sequence[Any]],
    vectors: Named,
    types: Mapping[str, Any],
    dims: Mapping[str, int],
) -> str:
    import lancedb

    every = {
        key: pa.array(values, types.get(key, pa.float32() if type(values[0]) is float else None))
        for key, values in columns.items()
    }
    for key, rows in vectors.items():
        kind = pa.list_(types.get(key, pa.float32()), dims[key])
        every[key] = pa.array([None if row is None else row.tolist() for row in rows], kind)
    folder.mkdir(parents=True, exist_ok=True)
    # Otherwise LanceDB takes a column that begins with NULLs for vectors of several lengths.
    lancedb.connect(folder).create_table("mine", pa.table(every), on_bad_vectors="null")
    return f"lance-table:{folder}#table=mine"


def _qdrant(
    folder: Path,
    columns: Mapping[str, Sequence[Any]],
    vectors: Named,
    types: Mapping[str, Any],
    dims: Mapping[str, int],
) -> str:
    from qdrant_client import QdrantClient, models

    without_waiting_for_the_disk()
    keys = columns.get("point", range(len(next(iter(columns.values())))))
    payloads = {key: values for key, values in columns.items() if key != "point"}
    points = [
        models.PointStruct(
            id=point,
            vector={key: rows[i].tolist() for key, rows in vectors.items() if rows[i] is not None},
            payload={key: _plain(values[i]) for key, values in payloads.items()},
        )
        for i, point in enumerate(keys)
    ]
    distance = models.Distance(types.get("distance") or "Dot")
    shape = {key: models.VectorParams(size=dims[key], distance=distance) for key in vectors}
    with closing(QdrantClient(path=str(folder))) as client:
        client.create_collection("mine", vectors_config=shape)
        client.upsert("mine", points)
    return f"qdrant-collection:{folder}#collection=mine"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return f"{value}T00:00:00Z" if isinstance(value, datetime.date) else value


MAKERS = {"pgvector-table": _pgvector, "lance-table": _lance, "qdrant-collection": _qdrant}


def contents(address: str) -> dict[int, dict[str, Any]]:
    """Return the rows of a table that `own_store` made, by id, as they are stored: vectors, of
    columns that begin with e, are bytes."""
    name = address.partition("&")[0].rpartition("=")[2]
    place = address.partition(":")[2].partition("#")[0]
    if address.startswith("pgvector"):
        with psycopg.connect(place) as connection:
            cursor = connection.execute(f"select * from {name}".encode())
            names = [column.name for column in cursor.description or ()]
            shown = [f"vector_send({key}::vector)" if key[0] == "e" else key for key in names]
            found = connection.execute(f"select {', '.join(shown)} from {name}".encode())
            rows = [dict(zip(names, row, strict=True)) for row in found]
        for row in rows:
            for key in [key for key in row if key[0] == "e" and row[key]]:
                row[key] = np.frombuffer(row[key][4:], ">f4").astype(np.float32).tobytes()
        return {row["id"]: row for row in rows}
    if address.startswith("lance"):
        import lancedb

        return rows_of_lance(lancedb.connect(place).open_table(name).to_arrow())
    from evergram.stores.open_store import open_store

    with open_store(address, create="int64") as store:
        ask: Any = vars(store)["_ask"]
        points, _ = ask("scroll", name, limit=10**6, with_vectors=True)
    return {
        point.id: {
            **(point.payload or {}),
            **{k: np.array(v, np.float32).tobytes() for k, v in point.vector.items()},
        }
        for point in points
    }


def rows_of_lance(table: pa.Table) -> dict[int, dict[str, Any]]:
    return {
        row["id"]: {
            key: np.array(
                value, table.schema.field(key).type.value_type.to_pandas_dtype()
            ).tobytes()
            if isinstance(value, list)
            else value
            for key, value in row.items()
        }
        for row in table.to_pylist()
    }
