"""What a snapshot does beyond what every store does."""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from filelock import FileLock
from tests.support.agreement import as_dict, same_hits, same_rows
from tests.support.dictionary_store import DictionaryStore

from evergram.errors import DataError, FormatError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.snapshot import segment, snapshot_folder, snapshot_record, snapshot_store
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Floats, Rows, Space

SPACE = Space(0, 8, "sha256:0")


def vectors(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)


def rows(first: int, count: int, seed: int = 0) -> Rows:
    return Rows(0, pa.array(range(first, first + count)), vectors(count, seed))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SnapshotStore]:
    with SnapshotStore.open(str(tmp_path / "store"), "int64") as made:
        made.add_space(SPACE)
        yield made


def files(store: SnapshotStore) -> list[str]:
    folder = Path(store.address.removeprefix("snapshot:")) / "segments"
    return sorted(path.name for path in folder.iterdir())


def test_a_store_is_opened_by_its_address(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no store at"):
        open_store(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    with pytest.raises(DataError, match="int64 or string"):
        open_store(str(tmp_path / "none"), create="uuid")
    made = open_store(f"snapshot:{tmp_path / 'made'}", create="string")
    assert open_store(made.address).id_type == pa.string()
    with pytest.raises(DataError, match="ids of type string"):
        open_store(made.address, create="int64")


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


def test_what_is_overridden_leaves_the_disk(store: SnapshotStore) -> None:
    for seed in range(5):
        store.load(SPACE, [rows(0, 2000, seed)])
        assert len(files(store)) == 1
    store.upsert(rows(0, 1200))
    # More than half of the large one was dead.
    assert {part.count / len(part.segment) for part in store._folder.current().parts} == {1.0}
    store.delete(pa.array(range(2000)))
    assert store.count() == {}
    assert [name for name in files(store) if "lookup" in name] == []


def test_a_load_in_several_files_and_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_folder, "BATCH_BYTES", 1)
    monkeypatch.setattr(snapshot_store, "MAX_ROWS", 3000)
    for id_type in ("int64", "string"):
        oracle = DictionaryStore(id_type)
        kind = pa.int64() if id_type == "int64" else pa.string()
        with SnapshotStore.open(str(tmp_path / id_type), id_type) as store:
            given = []
            for seed, first in enumerate([4000, 0, 3500, 2500, 0]):
                block = rows(first, 1700, seed)
                given.append(Rows(0, block.ids.cast(kind), block.vectors))
            for each in (store, oracle):
                assert each.load(SPACE, given) == 8500
            assert sum(name.endswith(".lookup") for name in files(store)) == 2
            asked = pa.array([3600, 100, 5699, 9999, 0, 2600]).cast(kind)
            assert as_dict(store.fetch(asked)) == as_dict(oracle.fetch(asked))
            assert as_dict(store.scan(size=999)) == as_dict(oracle.scan())
            among = pa.array(range(1000, 4000, 3)).cast(kind).to_pylist()
            query = {0: vectors(2, 77)}
            same_hits(store, oracle, query, 20)
            same_hits(store, oracle, query, 20, ids=among)


def test_text_ids_with_one_hash_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "text_key", lambda text: len(text) % 2)
    oracle = DictionaryStore("string")
    names = [f"{'x' * (i % 3)}{i}" for i in range(40)]
    with SnapshotStore.open(str(tmp_path / "store"), "string") as store:
        for each in (store, oracle):
            given = [Rows(0, pa.array(part), vectors(len(part))) for part in (names, names[5:9])]
            each.load(SPACE, given)
            each.upsert(Rows(0, pa.array(names[20:30]), vectors(10, 3)))
            each.delete(names[:3])
        same_rows(store, oracle)
        assert as_dict(store.fetch([names[30], "absent"])) == as_dict(oracle.fetch([names[30]]))


def test_an_index_finds_nearly_all_and_no_dead_row(tmp_path: Path) -> None:
    # Clusters, as embeddings have.
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((60, 8)) * 3
    drawn = centres[draw.integers(0, 60, 6000)] + draw.standard_normal((6000, 8))
    base: Floats = drawn.astype(np.float32)
    oracle = DictionaryStore()
    with SnapshotStore.open(str(tmp_path / "store"), "int64") as made:
        for each in (made, oracle):
            each.load(SPACE, [Rows(0, pa.array(range(6000)), base)])
    store = SnapshotStore(tmp_path / "store", index_from=5000)
    store.build_index()
    (name,) = [name for name in files(store) if name.endswith(".faiss")]
    recorded = json.loads((tmp_path / "store" / "store.json").read_text())["store"]
    index = recorded["segments"][0]["index"]
    assert index["name"] == name
    assert index["recall"] >= 0.95
    assert 2 * index["probes"] < index["lists"]
    # What is written later is found exactly, and what it replaces is not found.
    best = int(np.argmax(base @ base[17]))
    for each in (store, oracle):
        each.delete([best])
        each.upsert(Rows(0, pa.array([17, 6001]), np.stack([base[best] * 9, base[17] * 9])))
    queries: dict[int, Floats] = {0: base[:50] + np.float32(0.01)}
    truth = oracle.search(queries, 10)
    hits = store.search(queries, 10)
    assert best not in {key for found in hits for key in found.ids.to_pylist()}
    shared = [
        len(set(a.ids.to_pylist()) & set(b.ids.to_pylist()))
        for a, b in zip(hits, truth, strict=True)
    ]
    assert sum(shared) >= 0.95 * 10 * 50
    # All rows, and some of them, are found exactly.
    same_hits(store, oracle, {0: queries[0][:2]}, 6001)
    same_hits(store, oracle, {0: queries[0][:2]}, 10, ids=list(range(0, 6000, 7)))
    # Building again has nothing to do.
    before = files(store)
    store.build_index()
    assert files(store) == before
    store.close()


def test_without_faiss_search_is_exact_and_building_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = DictionaryStore()
    with SnapshotStore.open(str(tmp_path / "store"), "int64") as made:
        for each in (made, oracle):
            each.load(SPACE, [rows(0, 3000)])
    store = SnapshotStore(tmp_path / "store", index_from=1000)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "faiss", None)
        with pytest.raises(DataError, match=r"pip install 'evergram\[faiss\]'"):
            store.build_index()
        store.upsert(rows(5000, 1))
    store.build_index()
    store.close()
    monkeypatch.setitem(sys.modules, "faiss", None)
    oracle.upsert(rows(5000, 1))
    with SnapshotStore.open(str(tmp_path / "store")) as again:
        same_hits(again, oracle, {0: vectors(3, 5)}, 10)


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


@pytest.mark.long
def test_readers_while_another_thread_writes(store: SnapshotStore, tmp_path: Path) -> None:
    store.load(SPACE, [rows(0, 500)])
    other = SnapshotStore(tmp_path / "store")
    stop = threading.Event()
    wrong: list[object] = []

    def read(reader: SnapshotStore) -> None:
        try:
            while not stop.is_set():
                found = sorted(as_dict(reader.fetch([3, 499])))
                hits = reader.search({0: vectors(1)}, 5)[0]
                if found != [3, 499] or len(hits) != 5:
                    wrong.append((found, hits))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(reader,)) for reader in (store, other)]
    for thread in threads:
        thread.start()
    for i in range(60):
        store.upsert(rows(10 * (i % 50), 10, i))
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    other.close()


def test_a_second_writer_is_told_so(store: SnapshotStore, tmp_path: Path) -> None:
    impatient = SnapshotStore(tmp_path / "store", wait=0.05)
    with FileLock(tmp_path / "store" / ".lock"):
        assert impatient.count() == {}
        with pytest.raises(StoreError, match="Another process is writing"):
            impatient.upsert(rows(0, 1))
    impatient.upsert(rows(0, 1))
    assert store.count() == {0: 1}
    impatient.close()


def test_what_gives_the_blocks_cannot_write(store: SnapshotStore) -> None:
    def blocks() -> Iterator[Rows]:
        yield rows(0, 3)
        store.upsert(rows(9, 1))

    with pytest.raises(StoreError, match="is being loaded"):
        store.load(SPACE, blocks())
    with pytest.raises(DataError, match="version 5"):
        store.load(SPACE, [Rows(5, pa.array([1]), vectors(1))])
    assert store.count() == {}
    assert files(store) == []


def test_a_later_format_is_refused(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_record, "FORMAT_VERSION", 9)
    monkeypatch.setattr(snapshot_record, "READABLE", (9,))
    store.upsert(rows(0, 1))
    monkeypatch.undo()
    with pytest.raises(FormatError, match="format_version 9; this Evergram reads 1 to 2"):
        SnapshotStore.open(str(tmp_path / "store"))
