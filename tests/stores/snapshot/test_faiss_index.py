"""The index of a segment: nearly exact, never a dead row, and not needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import same_hits
from tests.support.dictionary_store import DictionaryStore
from tests.support.snapshot_rows import SPACE, files, rows, vectors

from evergram.errors import DataError
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Floats, Rows


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
    assert best not in {key for best_rows in hits for key in best_rows.ids.to_pylist()}
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
