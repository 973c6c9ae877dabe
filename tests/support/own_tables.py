"""Tables that are nobody's store: somebody's documents, with a column of vectors a version."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.sql import SQL, Identifier
from tests.support.lineages import DIMS, vectors_of
from tests.support.postgres_server import postgres

NUMBERS = itertools.count()
CATEGORIES = ("news", "sport", "o'clock; --")


def category(row: int) -> str:
    return CATEGORIES[row % 3]


def text_of(vector: npt.NDArray[np.float32]) -> str:
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def own_table(
    rows: int = 300,
    versions: Mapping[int, range] | None = None,
    *,
    name: str | None = None,
    id_type: str = "bigint",
    dims: bool = True,
) -> str:
    """Make a table `documents…` of the columns id, title, category, year and e0, e1, ….

    Args:
        versions: version to the ids whose column is not NULL; {0: all} by default.
        id_type: of PostgreSQL; texts are those of the numbers.
        dims: whether the columns say their dims.
    Returns: its name.
    """
    versions = {0: range(rows)} if versions is None else versions
    name = f"documents{next(NUMBERS)}" if name is None else name
    vectors = {v: vectors_of(v, rows).numpy() for v in versions}
    columns = [f"e{v} vector({DIMS[v]})" if dims else f"e{v} vector" for v in versions]
    with psycopg.connect(postgres().uri, autocommit=True) as connection:
        connection.execute("create extension if not exists vector")
        connection.execute(
            SQL(
                "create table {} (id "
                + id_type
                + " primary key, title text, category text, year int, "
            ).format(Identifier(name))
            + SQL(", ".join(columns) + ")")
        )
        places = ", ".join(["%s"] * (4 + len(columns)))
        query = SQL("insert into {} values (" + places + ")").format(
            Identifier(name.replace("%", "%%"))
        )
        data = [
            (
                str(i) if id_type in ("text", "varchar") else i,
                f"Title {i}",
                category(i),
                2000 + i % 20,
                *(text_of(vectors[v][i]) if i in versions[v] else None for v in versions),
            )
            for i in range(rows)
        ]
        connection.cursor().executemany(query, data)
    return name


def address_of(name: str, versions: Iterable[int] = (0,), more: str = "") -> str:
    columns = "".join(f"&v{v}=e{v}" for v in versions)
    return f"pgvector-table:{postgres().uri}#table={name}{columns}{more}"
