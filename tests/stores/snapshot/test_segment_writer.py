"""Rows written in several batches and files are found again by their ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import as_dict, same_hits
from tests.support.dictionary_store import DictionaryStore
from tests.support.snapshot_rows import SPACE, files, rows, vectors

from evergram.stores.rows import row_checks
from evergram.stores.snapshot import snapshot_folder, snapshot_store
from evergram.stores.snapshot.segment import Segment, keys_of
from evergram.stores.snapshot.segment_writer import SegmentWriter, sorted_places
from evergram.stores.snapshot.snapshot_record import SegmentRecord
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Rows


def test_a_load_in_several_files_and_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_folder, "BATCH_BYTES", 1)
    monkeypatch.setattr(snapshot_store, "MAX_ROWS", 3000)
    for id_type in ("int64", "string"):
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
            among = pa.array(range(1000, 4000, 3)).cast(kind).to_pylist()
            query = {0: vectors(2, 77)}
            same_hits(store, oracle, query, 20)
            same_hits(store, oracle, query, 20, ids=among)


def write(folder: Path, ids: pa.Array, batch_rows: int, blocks: int = 1) -> SegmentRecord:
    with SegmentWriter(folder, 5, 0, batch_rows) as writer:
        for part in np.array_split(np.arange(len(ids)), blocks):
            block = Rows(0, ids.take(pa.array(part)), vectors(len(part)))
            writer.add(block, row_checks(block))
        return writer.finish()


def test_rows_of_one_batch_are_sorted_and_each_id_is_there_once(tmp_path: Path) -> None:
    record = write(tmp_path, pa.array([9, 2, 5, 2]), batch_rows=4)
    assert (record.number, record.version, record.rows, record.lookup) == (5, 0, 3, None)
    segment = Segment(tmp_path, record)
    assert segment.ids(np.arange(3)).to_pylist() == [2, 5, 9]


@pytest.mark.parametrize("blocks", [1, 2, 9])
def test_more_rows_stay_in_their_order_with_a_lookup(tmp_path: Path, blocks: int) -> None:
    ids = pa.array([9, 2, 5, 2, 7, 1, 8, 3, 4])
    record = write(tmp_path, ids, batch_rows=4, blocks=blocks)
    assert (record.rows, record.files) == (9, ["5.arrow", "5.lookup"])
    segment = Segment(tmp_path, record)
    assert segment.ids(np.arange(9)).to_pylist() == ids.to_pylist()
    assert {len(batch.ids) for batch in segment.batches[:-1]} == {4}


def test_a_file_that_was_not_finished_is_removed(tmp_path: Path) -> None:
    block = Rows(0, pa.array(range(9)), vectors(9))
    writer = SegmentWriter(tmp_path, 5, 0, 2)
    writer.add(block, row_checks(block))
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(KeyboardInterrupt), writer:
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_places_are_sorted_by_key_and_of_equal_ids_the_last_stays() -> None:
    ids = pa.array([5, 3, 5, 4, 3])
    assert sorted_places(keys_of(ids), ids).tolist() == [4, 3, 2]
    texts = pa.array(["a", "b", "a", "c"])
    same_key = np.zeros(4, np.uint64)
    kept = sorted_places(same_key, texts)
    assert sorted(texts.take(pa.array(kept)).to_pylist()) == ["a", "b", "c"]
    assert 2 in kept
    assert 0 not in kept


def test_ids_are_read_only_where_keys_repeat() -> None:
    def read() -> pa.Array:
        raise AssertionError("no key repeats")

    assert sorted_places(np.array([2, 1], np.uint64), read).tolist() == [1, 0]
