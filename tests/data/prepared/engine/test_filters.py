"""Rows are ordered and left out as plain Python would."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from evergram.data.prepared.engine.database import Database
from evergram.data.prepared.engine.filters import (
    drop_pairs,
    drop_repeats,
    keep_core,
    sort_by_time,
)
from evergram.errors import DataError


def load(database: Database, **columns: list[int]) -> None:
    table = pa.table(columns)
    database.create("interactions", table.schema, table.to_batches())
    for side in ("query", "candidate"):
        database.run(f"CREATE TABLE known_{side} (id BIGINT, row BIGINT, count BIGINT)")


def rows(database: Database) -> list[tuple[int, ...]]:
    ordered = database.rows("SELECT rowid, * FROM interactions ORDER BY rowid")
    assert [row[0] for row in ordered] == list(range(len(ordered)))
    return [row[1:] for row in ordered]


def test_ties_keep_their_order(database: Database) -> None:
    rng = np.random.default_rng(0)
    times = rng.integers(0, 5, 400_000)
    numbers = list(range(len(times)))
    load(database, query=numbers, candidate=numbers, time=times.tolist())
    sort_by_time(database)
    order = [row[0] for row in rows(database)]
    assert order == np.argsort(times, kind="stable").tolist()


def test_the_first_of_each_pair_stays(database: Database) -> None:
    load(database, query=[1, 1, 2, 1, 2], candidate=[1, 2, 1, 1, 1], time=[0, 1, 2, 3, 4])
    assert drop_repeats(database) == 2
    assert rows(database) == [(1, 1, 0), (1, 2, 1), (2, 1, 2)]
    assert drop_repeats(database) == 0


def test_pairs_of_a_table_are_left_out(database: Database) -> None:
    load(database, query=[1, 1, 2, 1], candidate=[1, 2, 1, 1])
    database.run("CREATE TABLE old AS SELECT 1 AS query, 1 AS candidate")
    assert drop_pairs(database, "old") == 2
    assert rows(database) == [(1, 2), (2, 1)]


def test_a_core_is_a_fixed_point(database: Database) -> None:
    """A path falls apart from its ends, one entity after the other; a square stays."""
    path = [(q, c) for q in range(10, 20) for c in (q, q + 1)]
    square = [(1, 1), (1, 2), (2, 1), (2, 2)]
    pairs = path[:7] + square + path[7:]
    load(database, query=[q for q, _ in pairs], candidate=[c for _, c in pairs])
    assert keep_core(database, 2) == len(path)
    assert rows(database) == square
    with pytest.raises(DataError, match=r"k_core \(--k-core\) 3"):
        keep_core(database, 3)


def test_a_core_counts_earlier_parts(database: Database) -> None:
    load(database, query=[1, 2], candidate=[1, 1])
    database.run("INSERT INTO known_query VALUES (1, 0, 5)")
    database.run("INSERT INTO known_candidate VALUES (1, 0, 1)")
    assert keep_core(database, 2) == 1
    assert rows(database) == [(1, 1)]
