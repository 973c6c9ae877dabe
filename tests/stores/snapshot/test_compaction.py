"""Segments are merged so that there are few, and dead rows leave the disk."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import same_hits, same_rows
from tests.support.dictionary_store import DictionaryStore
from tests.support.snapshot_rows import SPACE, files, rows, vectors

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
