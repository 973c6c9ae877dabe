"""Rows written in several batches and files are found again by their ids."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.agreement import as_dict, same_hits
from tests.support.dictionary_store import DictionaryStore
from tests.support.snapshot_rows import SPACE, files, rows, vectors

from evergram.stores.snapshot import snapshot_folder, snapshot_store
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
