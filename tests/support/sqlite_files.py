"""A small store in an SQLite file, its rows, and another program that changes the file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa

from evergram.stores.store import Rows


def rows(ids: range, version: int = 0, dim: int = 4, value: float = 1.0) -> Rows:
    vectors = np.full((len(ids), dim), value, dtype=np.float32)
    return Rows(version, pa.array(ids, pa.int64()), vectors)


def edited(path: Path, *statements: str) -> None:
    """Change an SQLite file as another program would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def asked(path: Path, question: str) -> list[tuple[object, ...]]:
    """Return what another program reads from an SQLite file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(question).fetchall()
