"""What a snapshot does beyond what every store does."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import as_dict
from tests.support.snapshot_rows import SPACE, rows, vectors

from evergram.errors import DataError
from evergram.stores.open_store import open_store
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Rows


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


def test_a_query_whose_products_pass_float32_has_as_many_results(store: SnapshotStore) -> None:
    """NaN in one product hid all rows that were compared together."""
    store.upsert(Rows(SPACE.version, pa.array(range(100)), vectors(100)))
    huge = np.resize(np.array([3e38, -3e38], np.float32), (1, SPACE.dim))
    for queries in (huge, np.concatenate([huge, -huge])):
        for hits in store.search({SPACE.version: queries}, 5):
            assert len(hits) == 5
            assert not np.isnan(hits.scores).any()


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
