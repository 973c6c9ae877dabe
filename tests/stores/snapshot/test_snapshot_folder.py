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

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.rows import row_checks
from evergram.stores.snapshot.snapshot_folder import SnapshotFolder
from evergram.stores.snapshot.snapshot_record import (
    SegmentRecord,
    SnapshotRecord,
    write_record,
)
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


def test_a_folder_with_a_file_in_its_place_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be made a store: "):
        SnapshotFolder(tmp_path / "file", 0.1).create("int64")
    with pytest.raises(StoreError, match=r"none cannot be read: No such file or directory\."):
        SnapshotFolder(tmp_path / "none", 0.1).current()


def test_files_that_are_not_listed_are_removed_by_the_next_writer(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "s", 1.0)
    folder.create("int64")
    (folder.segments / "left.arrow").write_text("of a killed writer")
    folder.current()
    assert (folder.segments / "left.arrow").exists(), "a reader removes nothing"
    with folder.writing():
        pass
    assert list(folder.segments.iterdir()) == []


def test_a_commit_adds_segments_and_removes_those_it_replaces(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "s", 1.0)
    folder.create("int64")

    def write(*ids: int) -> SegmentRecord:
        block = Rows(0, pa.array(ids), vectors(len(ids)))
        writer = folder.writer(0)
        writer.add(block, row_checks(block))
        return writer.finish()

    with folder.writing():
        folder.commit([], spaces=(SPACE,), side="query")
        first = write(1, 2)
        folder.commit([first])
        second = write(1, 2, 3)
        folder.commit([second], removed=[first])
    record = SnapshotFolder(tmp_path / "s", 1.0).current().record
    assert (record.generation, record.next_number, record.side) == (3, 2, "query")
    assert [segment.number for segment in record.segments] == [1]
    assert [path.name for path in folder.segments.iterdir()] == ["1.arrow"]


@pytest.mark.parametrize("renamed", [False, True], ids=["before", "after"])
def test_an_interrupt_leaves_no_record_without_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    folder = SnapshotFolder(tmp_path / "s", 1.0)
    folder.create("int64")

    def interrupted(path: Path, record: SnapshotRecord) -> None:
        if renamed:
            write_record(path, record)
        raise KeyboardInterrupt

    block = Rows(0, pa.array([1, 2]), vectors(2))
    with folder.writing():
        folder.commit([], spaces=(SPACE,))
        writer = folder.writer(0)
        writer.add(block, row_checks(block))
        monkeypatch.setattr("evergram.stores.snapshot.snapshot_folder.write_record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.commit([writer.finish()])
    with SnapshotStore.open(str(tmp_path / "s")) as store:
        assert store.count() == ({0: 2} if renamed else {})
    assert len(list(folder.segments.iterdir())) == renamed


def test_a_listed_file_that_is_missing_is_named(store: SnapshotStore, tmp_path: Path) -> None:
    store.upsert(rows(0, 3))
    (path,) = (tmp_path / "store" / "segments").iterdir()
    path.unlink()
    with pytest.raises(IntegrityError, match=r"lists is not there \(.*0\.arrow.*\); restore"):
        SnapshotFolder(tmp_path / "store", 1.0).current()
