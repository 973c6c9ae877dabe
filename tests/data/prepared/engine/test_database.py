"""The database keeps rows in order, spills, and tells errors as they were raised."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from evergram.data.prepared.engine.database import Database
from evergram.errors import DataError

SCHEMA = pa.schema([("x", pa.int64())])


def numbers(batches: int, size: int = 1 << 16) -> Iterator[pa.RecordBatch]:
    for batch in range(batches):
        values = np.arange(batch * size, (batch + 1) * size)[::-1].copy()
        yield pa.record_batch([pa.array(values)], schema=SCHEMA)


def test_rows_keep_the_order_in_which_they_come(tmp_path: Path) -> None:
    with Database(tmp_path, 256 << 20, 4) as database:
        database.create("t", SCHEMA, numbers(16))
        batches = list(database.batches("SELECT x, rowid AS row FROM t"))
        order = np.concatenate([b["row"].to_numpy() for b in batches])
        values = np.concatenate([b["x"].to_numpy() for b in batches])
        expected = np.concatenate([b["x"].to_numpy() for b in numbers(16)])
        assert np.array_equal(values[np.argsort(order)], expected)
        database.run("CREATE TABLE s AS SELECT x FROM t ORDER BY x")
        wrong = "SELECT count(*) FROM s WHERE x <> rowid"
        assert database.number(wrong) == 0
        assert database.number("SELECT max(x) FROM s WHERE x < 0") == 0


def test_an_error_of_the_batches_is_raised_as_it_is(database: Database) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from numbers(2)
        raise DataError("row 7 is wrong.")

    with pytest.raises(DataError, match=r"^row 7 is wrong\.$"):
        database.create("t", SCHEMA, broken())


def test_more_than_memory_goes_to_disk(tmp_path: Path) -> None:
    with Database(tmp_path, 128 << 20, 1) as database:
        database.create("t", SCHEMA, numbers(160))
        database.run("CREATE TABLE s AS SELECT x, x AS a, x AS b FROM t ORDER BY hash(x)")
        assert database.number("SELECT count(*) FROM s") == 160 << 16
        assert database.number("SELECT count(DISTINCT x) FROM s") == 160 << 16


def test_too_little_memory_is_a_sentence(tmp_path: Path) -> None:
    with Database(tmp_path, 16 << 20, 1) as database:
        database.create("t", SCHEMA, numbers(32))
        with pytest.raises(DataError, match=r"16 MiB of memory.*--memory"):
            database.rows("SELECT length(string_agg(x || repeat('x', 90), '')) FROM t")


def test_without_duckdb_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(DataError, match=r"evergram\[prepare\]"):
        Database(tmp_path, 256 << 20, 1)


def test_data_that_the_engine_cannot_use_is_a_sentence(database: Database) -> None:
    offsets, letters = (pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe"))
    batch = pa.record_batch({"x": pa.StringArray.from_buffers(1, offsets, letters)})
    with pytest.raises(DataError, match=r"cannot use the data: .*unicode"):
        database.create("t", batch.schema, [batch])
