"""The folder of a snapshot: one process writes at a time, and all read a whole record."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from filelock import FileLock
from tests.support.snapshot_rows import SPACE, files, rows, vectors

from evergram.errors import DataError, FormatError, IntegrityError, StoreError
from evergram.stores.rows import Space, row_checks
from evergram.stores.snapshot import snapshot_record
from evergram.stores.snapshot.snapshot_folder import SnapshotFolder
from evergram.stores.snapshot.snapshot_record import (
    FileRecord,
    IndexRecord,
    OpenRecord,
    SegmentRecord,
    SnapshotRecord,
    write_record,
)
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Rows


@pytest.mark.parametrize("among", [None, range(101)])
def test_a_row_whose_products_pass_float32_takes_no_place(
    store: SnapshotStore, among: range | None
) -> None:
    """It was among the best, with a score of NaN."""
    query = np.full((1, SPACE.dim), 3, np.float32)
    store.upsert(Rows(SPACE.version, pa.array(range(100)), vectors(100)))
    (before,) = store.search({SPACE.version: query}, 5)
    assert before.scores.min() > 0
    huge = np.zeros((1, SPACE.dim), np.float32)
    huge[0, :2] = 3e38, -3e38
    store.upsert(Rows(SPACE.version, pa.array([100]), huge))
    (after,) = store.search({SPACE.version: query}, 5, ids=None if among is None else list(among))
    assert after.ids.equals(before.ids)
    (all_hits,) = store.search({SPACE.version: query}, 101)
    assert len(all_hits) == 101
    assert all_hits.scores[all_hits.ids.to_pylist().index(100)] == 0


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


def test_files_that_are_not_listed_are_removed_by_the_next_writer(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "s", 1.0)
    folder.create("int64")
    (folder.segments / "left.arrow").write_text("of a killed writer")
    folder.current()
    assert (folder.segments / "left.arrow").exists(), "a reader removes nothing"
    with folder.writing():
        pass
    assert list(folder.segments.iterdir()) == []


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


def test_a_later_format_is_refused(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_record, "FORMAT_VERSION", 9)
    store.upsert(rows(0, 1))
    monkeypatch.undo()
    with pytest.raises(FormatError, match="format_version 9; this Evergram reads 1;"):
        SnapshotStore.open(str(tmp_path / "store"))


RECORD = SnapshotRecord(
    "int64",
    3,
    8,
    (Space(0, 4, "sha256:0"),),
    (
        SegmentRecord(
            7,
            0,
            100,
            FileRecord("7.arrow", "a"),
            FileRecord("7.lookup", "b"),
            IndexRecord("7.faiss", "c", 10, 2, 0.97, 50, "int8", 4),
        ),
        SegmentRecord(6, None, 2, FileRecord("6.arrow", "d")),
    ),
    "candidate",
)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "store.json", RECORD)
    assert OpenRecord(tmp_path / "store.json").record == RECORD
    assert RECORD.segments[0].files == ["7.arrow", "7.lookup", "7.faiss"]
    assert list(tmp_path.iterdir()) == [tmp_path / "store.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"store": {}, "sha256": "x"}', '{"sha256": "x", "store": []}']
)
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "store.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"store\.json is damaged \(its checksum differs\)"):
        OpenRecord(tmp_path / "store.json")


@pytest.mark.parametrize("name", ["../x", "/etc/x", "", ".", "a/b"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    segment = replace(RECORD.segments[1], data=FileRecord(name, "d"))
    write_record(tmp_path / "store.json", replace(RECORD, segments=(segment,)))
    with pytest.raises(IntegrityError, match="which is outside of the store's folder"):
        OpenRecord(tmp_path / "store.json")
