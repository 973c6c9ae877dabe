"""Hashes of trained pairs: read as they were written, small, and refused if they are no hashes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evergram.data.pair_hash import TrainedPairs
from evergram.errors import IntegrityError
from evergram.lineage.disk.trained_pairs import read_trained_pairs, write_trained_pairs


@pytest.mark.parametrize("count", [0, 1, 100_000])
def test_hashes_are_read_as_they_were_written(tmp_path: Path, count: int) -> None:
    draw = np.random.default_rng(0)
    marks = np.unique(draw.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32))
    write_trained_pairs(TrainedPairs(marks), tmp_path / "p")
    assert np.array_equal(read_trained_pairs(tmp_path / "p").marks, marks)
    # By their differences; as plain numbers they would take 32 bits each.
    assert (tmp_path / "p").stat().st_size < 1000 + 20 / 8 * count


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2], pa.int64()),
        pa.array([2, 1], pa.uint32()),
        pa.array([1, 1], pa.uint32()),
    ],
)
def test_other_numbers_are_refused(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"pair": column}), tmp_path / "p")
    with pytest.raises(IntegrityError, match="does not hold ascending 32-bit numbers"):
        read_trained_pairs(tmp_path / "p")


def test_another_file_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "table")
    for name in ("text", "table", "none"):
        with pytest.raises(IntegrityError, match=f"{name} cannot be read"):
            read_trained_pairs(tmp_path / name)
