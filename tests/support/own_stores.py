"""Every kind of table or collection of somebody's own, made with the same rows: documents with a
category, a year, and a vector a version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from psycopg.sql import SQL, Identifier
from qdrant_client import QdrantClient, models
from tests.support.lineages import DIMS, vectors_of
from tests.support.own_tables import address_of, category, own_table, text_of
from tests.support.postgres_server import postgres

Vectors = npt.NDArray[Any]
FILTER = "&filter=category,year"


def pgvector(folder: Path, held: Mapping[int, range], vectors: Mapping[int, Vectors]) -> str:
    rows = len(next(iter(vectors.values())))
    table = own_table(rows, held)
    with psycopg.connect(postgres().uri, autocommit=True) as connection:
        for version, ids in held.items():
            query = SQL("update {} set {} = %s where id = %s").format(
                Identifier(table), Identifier(f"e{version}")
            )
            data = [(text_of(vectors[version][i].astype(np.float32)), i) for i in ids]
            connection.cursor().executemany(query, data)
    return address_of(table, held, FILTER)


def lance(folder: Path, held: Mapping[int, range], vectors: Mapping[int, Vectors]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    # Both precisions that keep a vector's digits.
    types = [pa.float32(), pa.float64(), pa.float32()]
    rows = len(next(iter(vectors.values())))
    columns: dict[str, Any] = {
        "id": pa.array(range(rows), pa.int32()),
        "category": [category(i) for i in range(rows)],
        "year": [2000 + i % 20 for i in range(rows)],
    }
    for version, ids in held.items():
        block = [vectors[version][i].tolist() if i in ids else None for i in range(rows)]
        columns[f"e{version}"] = pa.array(block, pa.list_(types[version], DIMS[version]))
    # Otherwise LanceDB takes a column that begins with NULLs for vectors of several lengths.
    database = lancedb.connect(folder)
    database.create_table("documents", pa.table(columns), on_bad_vectors="null")
    return f"lance-table:{folder}#table=documents{_vectors(held)}{FILTER}"


def _qdrant(distance: str) -> Callable[..., str]:
    def make(folder: Path, held: Mapping[int, range], vectors: Mapping[int, Vectors]) -> str:
        shape = {
            f"e{v}": models.VectorParams(size=DIMS[v], distance=models.Distance(distance))
            for v in held
        }
        rows = len(next(iter(vectors.values())))
        points = [
            models.PointStruct(
                id=i,
                vector={f"e{v}": vectors[v][i].tolist() for v, ids in held.items() if i in ids},
                payload={"category": category(i), "year": 2000 + i % 20, "key": f"k{i}"},
            )
            for i in range(rows)
        ]
        with closing(QdrantClient(path=str(folder))) as client:
            client.create_collection("documents", vectors_config=shape)
            client.upsert("documents", points)
        return f"qdrant-collection:{folder}#collection=documents{_vectors(held)}{FILTER}"

    return make


def _vectors(held: Mapping[int, range]) -> str:
    return "".join(f"&v{version}=e{version}" for version in held)


OWN: dict[str, Callable[[Path, Mapping[int, range], Mapping[int, Vectors]], str]] = {
    "pgvector-table": pgvector,
    "lance-table": lance,
    "qdrant-collection, Dot": _qdrant("Dot"),
    "qdrant-collection, Euclid": _qdrant("Euclid"),
}


def own_store(
    kind: str,
    folder: Path,
    rows: int = 300,
    held: Mapping[int, range] | None = None,
    change: Callable[[int, Vectors], Vectors] = lambda version, vectors: vectors,
) -> str:
    """Make a table or a collection and return its address, with filters by category and year.

    Args:
        kind: of OWN.
        folder: of its files; it is made.
        held: version to the ids that have its vector; {0: all} by default.
        change: of the vectors [n, D] of a version, before they are written.
    """
    held = {0: range(rows)} if held is None else held
    vectors = {v: change(v, vectors_of(v, rows).numpy().copy()) for v in held}
    return OWN[kind](folder, held, vectors)
