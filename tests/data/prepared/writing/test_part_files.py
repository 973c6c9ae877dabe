"""The columns of a part are little-endian .npy files in the order of the interactions."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from evergram.data.prepared.engine.database import Database
from evergram.data.prepared.engine.vocabularies import Vocabularies
from evergram.data.prepared.writing import part_files
from evergram.data.prepared.writing.part_files import row_type, write_part

COLUMNS = {"query": "int32", "candidate": "int64", "time": "int64"}


def write(folder: Path, times: list[int]) -> part_files.PartFacts:
    folder.mkdir()
    ids = list(range(len(times)))
    table = pa.table({"query": ids[::-1], "candidate": ids, "time": times})
    engine = folder / "engine"
    engine.mkdir()
    with Database(engine, 256 << 20, 1) as database:
        database.create("interactions", table.schema, table.to_batches())
        for side in ("query", "candidate"):
            database.run(
                f"CREATE TABLE ids_{side} AS SELECT {side} AS id, {side} AS row FROM interactions"
            )
        return write_part(folder, database, Vocabularies(False, {}), COLUMNS)


def test_columns_are_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_files, "BLOCK", 3)
    monkeypatch.setattr(part_files, "WINDOW", 0)
    facts = write(tmp_path / "part", [1, 1, 2, 3, 3, 9, 9])
    assert (facts.rows, facts.first_time, facts.last_time) == (7, 1, 9)
    columns = {name: np.load(tmp_path / "part" / f"{name}.npy") for name in COLUMNS}
    assert [c.dtype.str for c in columns.values()] == ["<i4", "<i8", "<i8"]
    assert columns["query"].tolist() == list(range(7))[::-1]
    assert columns["time"].tolist() == [1, 1, 2, 3, 3, 9, 9]


def test_digests_are_of_the_files_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write(tmp_path / "a", [1, 2, 3, 4, 5]).sha256
    monkeypatch.setattr(part_files, "BLOCK", 2)
    assert write(tmp_path / "b", [1, 2, 3, 4, 5]).sha256 == whole
    assert whole == {
        name: hashlib.sha256((tmp_path / "a" / f"{name}.npy").read_bytes()).hexdigest()
        for name in COLUMNS
    }
    other = write(tmp_path / "c", [1, 2, 3, 4, 6]).sha256
    assert [name for name in COLUMNS if other[name] != whole[name]] == ["time"]


@pytest.mark.parametrize("block", [2, 100])
def test_times_that_fall_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(part_files, "BLOCK", block)
    with pytest.raises(AssertionError, match="not by time"):
        write(tmp_path / "a", [1, 2, 1, 4])


def test_rows_of_large_sides_are_wide() -> None:
    assert [row_type(n) for n in (1, 1 << 31, (1 << 31) + 1)] == ["int32", "int32", "int64"]
