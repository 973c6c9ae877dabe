"""A snapshot: segments, dead rows, and a folder that one process writes and all read whole."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from filelock import FileLock
from tests.support.agreement import as_dict, same_hits, same_rows
from tests.support.dictionary_store import DictionaryStore
from tests.support.snapshot_rows import SPACE, files, rows, vectors

from evergram.errors import DataError, FormatError, IntegrityError, StoreError
from evergram.stores.rows import Rows, Space, row_checks
from evergram.stores.snapshot import brute_force, snapshot_folder, snapshot_record, snapshot_store
from evergram.stores.snapshot import segment as segment_module
from evergram.stores.snapshot.compaction import next_merge
from evergram.stores.snapshot.generation import Generation, Part
from evergram.stores.snapshot.segment import Segment, Wanted, keys_of
from evergram.stores.snapshot.segment_writer import MAX_ROWS, SegmentWriter
from evergram.stores.snapshot.snapshot_folder import SnapshotFolder
from evergram.stores.snapshot.snapshot_record import (
    OpenRecord,
    SegmentRecord,
    SnapshotRecord,
    write_record,
)
from evergram.stores.snapshot.snapshot_store import SnapshotStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SnapshotStore]:
    with SnapshotStore.open(str(tmp_path / "store"), "int64") as made:
        made.add_space(SPACE)
        yield made


def test_text_ids_with_one_hash_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "text_key", lambda text: len(text) % 2)
    oracle = DictionaryStore("string")
    names = [f"{'x' * (i % 3)}{i}" for i in range(40)]
    with SnapshotStore.open(str(tmp_path / "store"), "string") as store:
        for each in (store, oracle):
            blocks = [Rows(0, pa.array(part), vectors(len(part))) for part in (names, names[5:9])]
            each.load(SPACE, blocks)
            each.upsert(Rows(0, pa.array(names[20:30]), vectors(10, 3)))
            each.delete(names[:3])
        same_rows(store, oracle)
        assert as_dict(store.fetch([names[30], "absent"])) == as_dict(oracle.fetch([names[30]]))


def segment_of(folder: Path, ids: list[int] | list[str], batch_rows: int) -> Segment:
    """A segment whose vectors are the places of its rows as they were written."""
    vectors = np.arange(2.0 * len(ids), dtype=np.float32).reshape(-1, 2)
    block = Rows(0, pa.array(ids), vectors)
    writer = SegmentWriter(folder, 0, 0, batch_rows)
    writer.add(block, row_checks(block))
    return Segment(folder, writer.finish())


@pytest.mark.parametrize("batch_rows", [100, 7])
@pytest.mark.parametrize("names", ["dense", "sparse", "texts"])
def test_each_asked_id_is_found_with_its_own_row(
    tmp_path: Path, batch_rows: int, names: str
) -> None:
    order = np.random.default_rng(0).permutation(40)
    numbers = (order if names == "dense" else order * 10**15 - 7).tolist()
    ids = [f"id{n}" for n in numbers] if names == "texts" else numbers
    segment = segment_of(tmp_path, ids, batch_rows)
    asked = [ids[13], "absent" if names == "texts" else -(10**18), ids[2], ids[39], ids[0]]
    which, found_rows = segment.find(Wanted.of(pa.array(asked)))
    assert which.tolist() == [0, 2, 3, 4]
    assert segment.ids(found_rows).to_pylist() == [ids[13], ids[2], ids[39], ids[0]]
    places = np.array([13, 2, 39, 0])
    expected = np.stack([2.0 * places, 2.0 * places + 1], axis=1)
    assert segment.vectors(found_rows).tolist() == expected.tolist()
    read = Rows(0, segment.ids(found_rows), segment.vectors(found_rows))
    assert np.array_equal(segment.checks(found_rows), row_checks(read))


@pytest.mark.parametrize("batch_rows", [100, 3])
def test_of_an_id_that_comes_again_the_last_row_is_living(tmp_path: Path, batch_rows: int) -> None:
    segment = segment_of(tmp_path, [5, 6, 5, 7, 6, 5], batch_rows)
    dead = segment.superseded()
    living = np.arange(len(segment)) if dead is None else np.flatnonzero(~dead)
    rows_by_id = dict(
        zip(segment.ids(living).to_pylist(), segment.vectors(living).tolist(), strict=True)
    )
    assert rows_by_id == {5: [10, 11], 7: [6, 7], 6: [8, 9]}


def test_keys_stay_as_they_are_in_files() -> None:
    """They are stored, so a later Evergram must compute the same."""
    assert keys_of(pa.array(["", "id-7"])).tolist() == [13020603013274838756, 5555235785907067145]
    assert keys_of(pa.array([3, -3])).tolist() == [3, -3]


def test_a_load_in_several_files_and_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_folder, "BATCH_BYTES", 1)
    monkeypatch.setattr(snapshot_store, "MAX_ROWS", 3000)
    monkeypatch.setattr(brute_force, "LEAST_ROWS", 1)
    for id_type, compared in (("int64", 1 << 16), ("string", 32)):
        # Rows are compared all at once, or a few at a time.
        monkeypatch.setattr(brute_force, "MOST_ROWS", compared)
        oracle = DictionaryStore(id_type)
        kind = pa.int64() if id_type == "int64" else pa.string()
        with SnapshotStore.open(str(tmp_path / id_type), id_type) as store:
            blocks = []
            for seed, first in enumerate([4000, 0, 3500, 2500, 0]):
                block = rows(first, 1700, seed)
                blocks.append(Rows(0, block.ids.cast(kind), block.vectors))
            for each in (store, oracle):
                assert each.load(SPACE, blocks) == 8500
            assert sum(name.endswith(".lookup") for name in files(store)) == 2
            asked = pa.array([3600, 100, 5699, 9999, 0, 2600]).cast(kind)
            assert as_dict(store.fetch(asked)) == as_dict(oracle.fetch(asked))
            assert as_dict(store.scan(size=999)) == as_dict(oracle.scan())
            for each in (store, oracle):
                each.delete(pa.array(range(0, 5000, 3)).cast(kind).to_pylist())
            among = pa.array(range(1000, 4000, 3)).cast(kind).to_pylist()
            for k in (1, 20, 3000):
                same_hits(store, oracle, {0: vectors(2, 77)}, k)
                same_hits(store, oracle, {0: vectors(1, 78)}, k, ids=among)


def test_a_file_that_was_not_finished_is_removed(tmp_path: Path) -> None:
    block = Rows(0, pa.array(range(9)), vectors(9))
    writer = SegmentWriter(tmp_path, 5, 0, 2)
    writer.add(block, row_checks(block))
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(KeyboardInterrupt), writer:
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


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


def test_what_is_merged_next() -> None:
    alike = [part(8 + i) for i in range(8)]
    assert next_merge(alike[:7]) == []
    others = [part(7), part(64), part(8, version=1), part(8, version=None)]
    assert next_merge([*others, *alike]) == alike
    half, more = part(10, dead=5), part(10, dead=6)
    assert next_merge([half, more]) == [more]
    # Deleted ids are not rows, and are never dead; the largest are left as they are.
    assert next_merge([part(10, version=None, dead=10)]) == []
    assert next_merge([part(MAX_ROWS) for _ in range(9)]) == []


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
    # Nor does one hide the others from a query that is as long.
    for hits in store.search({SPACE.version: np.concatenate([huge, -huge])}, 5):
        assert len(hits) == 5
        assert not np.isnan(hits.scores).any()
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


def test_the_blocks_of_a_load_cannot_write_to_the_store(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file is finished before the load fails.
    monkeypatch.setattr(snapshot_store, "MAX_ROWS", 2)

    def blocks() -> Iterator[Rows]:
        yield rows(0, 3)
        store.upsert(rows(9, 1))

    with pytest.raises(StoreError, match="is being loaded"):
        store.load(SPACE, blocks())
    assert files(store) == []
    with pytest.raises(DataError, match="version 5"):
        store.load(SPACE, [Rows(5, pa.array([1]), vectors(1))])
    assert store.count() == {}
    assert files(store) == []


def test_files_that_are_not_listed_are_removed_by_the_next_writer(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "s", 1.0)
    folder.create("int64")
    with pytest.raises(StoreError, match="cannot be read"):
        SnapshotFolder(tmp_path / "none", 1.0).current()
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


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"store": {}, "sha256": "x"}', '{"sha256": "x", "store": []}']
)
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "store.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"store\.json is damaged \(its checksum differs\)"):
        OpenRecord(tmp_path / "store.json")
