"""One column on disk: its header, its numbers, and what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.resident import on_linux, resident_bytes

from evergram.data.prepared.column_file import (
    ColumnFile,
    check_rows,
    check_sha256,
    new_column,
    release,
    sha256_of,
)
from evergram.errors import DataError


def test_a_column_that_was_written_in_pieces_is_what_numpy_reads(tmp_path: Path) -> None:
    path, values = tmp_path / "a.npy", np.arange(10, dtype="<i4")
    with new_column(path, values.dtype, 10) as file:
        file.write(values[:4].tobytes())
        file.write(values[4:].tobytes())
    assert np.load(path).tolist() == list(range(10))
    column = ColumnFile.open(path, 10)
    assert column.mapped().tolist() == list(range(10))
    assert column.mapped(at_random=True)[5:8].tolist() == [5, 6, 7]


def test_what_is_written_to_the_mapping_stays_in_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(4))
    column = ColumnFile.open(tmp_path / "a.npy", 4)
    column.mapped()[:] = 1
    assert column.mapped().tolist() == [0, 0, 0, 0]


@on_linux
def test_pages_are_released_and_come_back(tmp_path: Path) -> None:
    path, values = tmp_path / "a.npy", np.arange(1 << 20)
    np.save(path, values)
    column = ColumnFile.open(path, len(values)).mapped()
    for view in (column, column[7:], np.load(path, mmap_mode="r")):
        assert np.array_equal(view[-5:], values[-5:])
        assert int(view.sum()) > 0
        assert resident_bytes(path) >= 7 << 20
        release([view])
        assert resident_bytes(path) == 0
    assert np.array_equal(column, values)


def test_what_is_not_mapped_is_left_as_it_is() -> None:
    values = np.arange(5)
    release([values, values[1:], np.frombuffer(b"12345678", np.int64)])
    assert values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("values", [np.zeros(5), np.zeros((4, 1))])
def test_other_shapes_are_refused(values: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(DataError, match=r"a\.npy has the shape .* 4 numbers are expected"):
        ColumnFile.open(tmp_path / "a.npy", 4)


def test_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with pytest.raises(DataError, match="cannot be read"):
        ColumnFile.open(path, 4)
    np.save(path, np.zeros(4))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataError, match="cannot be read"):
        ColumnFile.open(path, 4)
    np.save(path, np.array([{}, 1, 2, 3], dtype=object))
    with pytest.raises(DataError, match="cannot be read"):
        ColumnFile.open(path, 4)
    for content in (b"", b"PK\x03\x04half", b"\x93NUMPY\x01\x00\x04\x00((((", b"{}"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read"):
            ColumnFile.open(path, 4)
    np.save(path, np.zeros(4))
    with pytest.raises(DataError, match="holds float64, and int32 is expected"):
        ColumnFile.open(path, None, np.dtype("<i4"))


def test_a_changed_byte_is_refused_where_the_sha256_is_known(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(1000))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert sha256_of(path) == digest
    column = ColumnFile.open(path, 1000, sha256=digest)
    column.verify("Stop.")
    content = bytearray(path.read_bytes())
    for place in (len(content) - 1, 500, 128):
        content[place] ^= 1
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=rf"a\.npy is not as it was .*with {digest[:8]} .*Stop."
        ):
            column.verify("Stop.")
        content[place] ^= 1
    ColumnFile.open(path, 1000).verify("Stop.")  # one that was written without it
    path.unlink()
    with pytest.raises(DataError, match=r"a\.npy cannot be read: No such file .* Stop\."):
        column.verify("Stop.")
    check_sha256(path, None, "Stop.")


@pytest.mark.parametrize("row", [-1, 5, 0x7FFFFFFF])
def test_rows_outside_of_a_side_are_refused(row: int) -> None:
    check_rows(torch.tensor([0, 4], dtype=torch.int32), "query", 5, "Stop.")
    check_rows(torch.tensor([], dtype=torch.int32), "query", 5, "Stop.")
    with pytest.raises(DataError, match=f"'query' .*{row}.* there are 5; .* damaged. Stop."):
        check_rows(torch.tensor([0, row], dtype=torch.int32), "query", 5, "Stop.")
