"""Segments are merged so that there are few, and dead rows leave the disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import same_hits, same_rows
from tests.support.dictionary_store import DictionaryStore
from tests.support.snapshot_rows import SPACE, files, rows, vectors

from evergram.stores.snapshot.compaction import next_merge
from evergram.stores.snapshot.generation import Part
from evergram.stores.snapshot.segment_writer import MAX_ROWS
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Rows


@pytest.mark.long
def test_there_are_few_segments_however_many_writes(store: SnapshotStore) -> None:
    oracle = DictionaryStore()
    oracle.add_space(SPACE)
    most, draw = 0, np.random.default_rng(0)
    for i in range(300):
        written = Rows(0, pa.array(draw.choice(5000, 5, replace=False)), vectors(5, i))
        store.upsert(written)
        oracle.upsert(written)
        most = max(most, len(files(store)))
    # 1,500 rows: at most seven of each of four sizes, and the one that was just written.
    assert 8 <= most <= 29
    same_rows(store, oracle)
    same_hits(store, oracle, {0: vectors(3, 1000)}, 50)


def test_rows_that_were_written_again_leave_the_disk(store: SnapshotStore) -> None:
    for seed in range(5):
        store.load(SPACE, [rows(0, 2000, seed)])
        assert len(files(store)) == 1
    store.upsert(rows(0, 1200))
    # More than half of the large one was dead.
    assert {part.count / len(part.segment) for part in store._folder.current().parts} == {1.0}
    store.delete(pa.array(range(2000)))
    assert store.count() == {}
    assert [name for name in files(store) if "lookup" in name] == []


def part(rows: int, version: int | None = 0, dead: int = 0) -> Part:
    """A stand-in for a part: its number of rows, and how many of them are dead."""
    record = SimpleNamespace(version=version)
    segment = range(rows)
    return cast("Part", SimpleNamespace(record=record, segment=segment, count=rows - dead))


def test_eight_segments_of_one_size_are_merged() -> None:
    alike = [part(8 + i) for i in range(8)]
    assert next_merge(alike[:7]) == []
    others = [part(7), part(64), part(8, version=1), part(8, version=None)]
    assert next_merge([*others, *alike]) == alike


def test_a_segment_that_is_more_than_half_dead_is_rewritten_alone() -> None:
    half, more = part(10, dead=5), part(10, dead=6)
    assert next_merge([half, more]) == [more]
    # Deleted ids are not rows, and are never dead.
    assert next_merge([part(10, version=None, dead=10)]) == []


def test_the_largest_segments_are_left_as_they_are() -> None:
    assert next_merge([part(MAX_ROWS) for _ in range(9)]) == []
