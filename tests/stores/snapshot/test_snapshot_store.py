"""What a snapshot does beyond what every store does."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.agreement import as_dict
from tests.support.snapshot_rows import SPACE, rows, vectors

from evergram.errors import DataError
from evergram.stores.open_store import open_store
from evergram.stores.snapshot.snapshot_store import SnapshotStore


def test_a_store_is_opened_by_its_address(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no store at"):
        open_store(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    with pytest.raises(DataError, match="int64 or string"):
        open_store(str(tmp_path / "none"), create="uuid")
    store = open_store(f"snapshot:{tmp_path / 'store'}", create="string")
    assert open_store(store.address).id_type == pa.string()
    with pytest.raises(DataError, match="ids of type string"):
        open_store(store.address, create="int64")


@pytest.mark.long
def test_readers_while_another_thread_writes(store: SnapshotStore, tmp_path: Path) -> None:
    store.load(SPACE, [rows(0, 500)])
    other = SnapshotStore(tmp_path / "store")
    stop = threading.Event()
    wrong: list[object] = []

    def read(reader: SnapshotStore) -> None:
        try:
            while not stop.is_set():
                fetched = sorted(as_dict(reader.fetch([3, 499])))
                hits = reader.search({0: vectors(1)}, 5)[0]
                if fetched != [3, 499] or len(hits) != 5:
                    wrong.append((fetched, hits))
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
