"""One process writes to a folder at a time; all read its newest generation."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest
from filelock import FileLock
from tests.support.snapshot_rows import SPACE, files, rows, vectors

from evergram.errors import DataError, StoreError
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Rows


def _read_along(path: Path, pipe: Connection) -> None:
    with SnapshotStore.open(str(path)) as store:
        while (asked := pipe.recv()) is not None:
            pipe.send((store.count(), len(store.fetch([asked]))))


def test_another_process_sees_each_write(store: SnapshotStore, tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    reader = multiprocessing.get_context("spawn").Process(
        target=_read_along, args=(tmp_path / "store", theirs)
    )
    reader.start()
    for i in range(20):
        ours.send(i)
        assert ours.recv() == ({0: i} if i else {}, 0)
        store.upsert(rows(i, 1))
        ours.send(i)
        assert ours.recv() == ({0: i + 1}, 1)
    ours.send(None)
    reader.join()
    assert reader.exitcode == 0


def test_a_second_writer_is_refused(store: SnapshotStore, tmp_path: Path) -> None:
    impatient = SnapshotStore(tmp_path / "store", wait=0.05)
    with FileLock(tmp_path / "store" / ".lock"):
        assert impatient.count() == {}
        with pytest.raises(StoreError, match="Another process is writing"):
            impatient.upsert(rows(0, 1))
    impatient.upsert(rows(0, 1))
    assert store.count() == {0: 1}
    impatient.close()


def test_the_blocks_of_a_load_cannot_write_to_the_store(store: SnapshotStore) -> None:
    def blocks() -> Iterator[Rows]:
        yield rows(0, 3)
        store.upsert(rows(9, 1))

    with pytest.raises(StoreError, match="is being loaded"):
        store.load(SPACE, blocks())
    with pytest.raises(DataError, match="version 5"):
        store.load(SPACE, [Rows(5, pa.array([1]), vectors(1))])
    assert store.count() == {}
    assert files(store) == []
