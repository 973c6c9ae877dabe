"""Rows of a segment are found by their ids."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.agreement import as_dict, same_rows
from tests.support.dictionary_store import DictionaryStore
from tests.support.snapshot_rows import SPACE, vectors

from evergram.stores.snapshot import segment
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Rows


def test_text_ids_with_one_hash_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "text_key", lambda text: len(text) % 2)
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
