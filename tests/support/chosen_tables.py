"""Tables and collections of one's own whose columns a test chooses."""

from __future__ import annotations

import datetime
import itertools
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import psycopg
import pyarrow as pa
from psycopg.sql import Identifier
from qdrant_client import QdrantClient, models
from tests.support.own_tables import text_of
from tests.support.postgres_server import postgres

NUMBERS = itertools.count()
KINDS = ("pgvector-table", "lance-table", "qdrant-collection")
SQL = {
    int: "bigint",
    str: "text",
    float: "real",
    bool: "boolean",
    datetime.date: "date",
    uuid.UUID: "uuid",
}


def table_of(
    kind: str,
    folder: Path,
    columns: Mapping[str, Sequence[Any]],
    vectors: np.ndarray,
    types: Mapping[str, Any] | None = None,
    vector: str = "e0",
) -> str:
    """Make a table of these columns and one of vectors, and return its address, with `v0=`.

    Args:
        types: of a column, as the kind names them; by its values where none is given. Ids of
            Qdrant's points are those of a column "point".
    """
    types = types or {}
    return MAKERS[kind](folder, columns, vectors, types, vector)


def _pgvector(
    folder: Path,
    columns: Mapping[str, Sequence[Any]],
    vectors: np.ndarray,
    types: Mapping[str, Any],
    vector: str,
) -> str:
    name = f"chosen{next(NUMBERS)}"
    shapes = [
        f"{quoted(key)} {types.get(key) or SQL[type(values[0])]}" for key, values in columns.items()
    ]
    server = postgres()
    server.sql("create extension if not exists vector")
    shapes.append(f"{quoted(vector)} {types.get(vector) or f'vector({vectors.shape[1]})'}")
    server.sql(f"create table {name} ({', '.join(shapes)})")
    with psycopg.connect(server.uri, autocommit=True) as connection:
        places = ", ".join(["%s"] * len(shapes))
        data = zip(*columns.values(), map(text_of, vectors), strict=True)
        connection.cursor().executemany(f"insert into {name} values ({places})".encode(), data)
    return f"pgvector-table:{server.uri}#table={name}&v0={vector.replace('%', '%25')}"


def quoted(name: str) -> str:
    return Identifier(name).as_string(None)


def _lance(
    folder: Path,
    columns: Mapping[str, Sequence[Any]],
    vectors: np.ndarray,
    types: Mapping[str, Any],
    vector: str,
) -> str:
    every = {
        key: pa.array(values, types.get(key, pa.float32() if type(values[0]) is float else None))
        for key, values in columns.items()
    }
    every[vector] = listed(vectors, types.get(vector, pa.float32()))
    table = pa.table(every)
    lancedb.connect(folder).create_table("mine", table, on_bad_vectors="null")
    return f"lance-table:{folder}#table=mine&v0={vector.replace('%', '%25')}"


def listed(vectors: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    flat = pa.array(vectors.reshape(-1)).cast(kind or pa.float32(), safe=False)
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def _qdrant(
    folder: Path,
    columns: Mapping[str, Sequence[Any]],
    vectors: np.ndarray,
    types: Mapping[str, Any],
    vector: str,
) -> str:
    payloads = {key: values for key, values in columns.items() if key != "point"}
    points = [
        models.PointStruct(
            id=columns["point"][i] if "point" in columns else i,
            vector={vector: row.tolist()},
            payload={key: _plain(values[i]) for key, values in payloads.items()},
        )
        for i, row in enumerate(vectors)
    ]
    params = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
    with closing(QdrantClient(path=str(folder))) as client:
        client.create_collection("mine", vectors_config={vector: params})
        client.upsert("mine", points)
    return f"qdrant-collection:{folder}#collection=mine&v0={vector}"


def _plain(value: Any) -> Any:
    return f"{value}T00:00:00Z" if isinstance(value, datetime.date) else value


MAKERS = {"pgvector-table": _pgvector, "lance-table": _lance, "qdrant-collection": _qdrant}
