"""A generation knows which rows of its segments are living, however they were written again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from evergram.stores.rows import Rows, Space, row_checks
from evergram.stores.snapshot.generation import Generation, Part, joined
from evergram.stores.snapshot.segment import Segment, Wanted
from evergram.stores.snapshot.segment_writer import SegmentWriter
from evergram.stores.snapshot.snapshot_record import SegmentRecord, SnapshotRecord


class Folder:
    """Segments in a folder, and the generations that list them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self.loaded: list[int] = []
        spaces = tuple(Space(n, 2, f"sha256:{n}") for n in range(2))
        self._record = SnapshotRecord("int64", 0, 0, spaces, ())
        self.generation = Generation(self._record, [])

    def write(self, version: int | None, *ids: int) -> Generation:
        """Write rows of a version, or ids that were deleted, as one more segment."""
        writer = SegmentWriter(self._path, self._number, version, batch_rows=100)
        self._number += 1
        vectors = np.full((len(ids), 2), self._number, np.float32)
        rows = Rows(-1 if version is None else version, pa.array(ids), vectors)
        writer.add(rows, row_checks(rows))
        segments = (*self.generation.record.segments, writer.finish())
        record = SnapshotRecord("int64", 0, self._number, self._record.spaces, segments)
        self.generation = self.generation.advanced(record, self._load)
        return self.generation

    def _load(self, record: SegmentRecord) -> Segment:
        self.loaded.append(record.number)
        return Segment(self._path, record)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def living(part: Part) -> list[int]:
    return [int(key) for key in part.segment.ids(part.rows()).to_pylist()]


def test_a_row_that_is_written_again_is_dead_where_it_was(folder: Folder) -> None:
    folder.write(0, 1, 2, 3)
    folder.write(1, 2)
    generation = folder.write(0, 3, 4)
    assert [living(part) for part in generation.parts] == [[1], [2], [3, 4]]
    assert generation.count() == {0: 3, 1: 1}
    assert [part.version for part in generation.of(0)] == [0, 0]
    assert folder.loaded == [0, 1, 2], "no segment is loaded twice"


def test_a_large_segment_replaces_rows_of_a_small_one(folder: Folder) -> None:
    folder.write(0, 5, 900)
    generation = folder.write(1, *range(50))
    assert living(generation.parts[0]) == [900]


def test_a_deleted_id_has_no_living_row(folder: Folder) -> None:
    folder.write(0, 1, 2)
    generation = folder.write(None, 2)
    assert generation.count() == {0: 1}
    assert [part.version for part in generation.parts] == [0, -1]
    assert generation.data() == [generation.parts[0]]
    assert generation.living(pa.array([1, 2, 3])).to_pylist() == [1]


def test_a_deleted_id_stays_listed_while_a_file_has_a_row_of_it(folder: Folder) -> None:
    folder.write(0, 1, 2, 3)
    folder.write(None, 1, 2, 9)
    generation = folder.write(0, 2)
    # 2 is living again, and no file has 9.
    assert generation.still_deleted([generation.parts[1]]).to_pylist() == [1]


def test_segments_without_a_living_row_are_left_out(folder: Folder) -> None:
    folder.write(0, 1)
    folder.write(0, 1, 2)
    generation = folder.write(None, 5).without_empty()
    assert [record.number for record in generation.record.segments] == [1, 2]
    assert len(generation.parts) == 2


def test_ids_are_found_where_they_are_living(folder: Folder) -> None:
    folder.write(0, 1, 2, 3)
    first, second = folder.write(0, 2).parts
    wanted = Wanted.of(pa.array([3, 2, 8]))
    assert [places.tolist() for places in first.find(wanted)] == [[0], [2]]
    assert [places.tolist() for places in second.find(wanted)] == [[1], [0]]


def test_living_rows_come_with_the_checksums_they_were_written_with(folder: Folder) -> None:
    folder.write(0, 1, 2, 3)
    (first, _) = folder.write(0, 2).parts
    blocks = list(first.blocks(1))
    assert [rows.ids.to_pylist() for rows, _ in blocks] == [[1], [3]]
    rows, checks = joined(blocks)
    assert rows.ids.to_pylist() == [1, 3]
    assert np.array_equal(row_checks(rows), checks)
