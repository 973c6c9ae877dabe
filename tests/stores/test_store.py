"""What every kind of store inherits: sides, spaces, and rows that are refused before a write."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from tests.support.dictionary_store import DictionaryStore

from evergram.errors import DataError, IntegrityError
from evergram.stores.rows import Rows, Space

SPACE = Space(0, 2, "sha256:0")


def rows(*ids: int) -> Rows:
    return Rows(0, pa.array(ids), np.ones((len(ids), 2), np.float32))


def test_a_store_that_another_process_takes_meanwhile_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = DictionaryStore()

    def set_side(side: str) -> None:
        store._side = store._side or "query"

    monkeypatch.setattr(store, "_set_side", set_side)
    message = "dictionary:one is the store of side 'query' and cannot hold side 'candidate'"
    with pytest.raises(IntegrityError, match=message):
        store.take_side("candidate")
    store.take_side("query")


def test_rows_are_written_only_to_a_space_that_is_there() -> None:
    store = DictionaryStore()
    with pytest.raises(DataError, match="dictionary:one has no space for version 0; it has none"):
        store.upsert(rows(1))
    store.add_space(Space(4, 2, "sha256:4"))
    with pytest.raises(DataError, match="no space for version 0; it has 4"):
        store.upsert(rows(1))


def test_a_space_of_another_lineage_is_named_with_both_fingerprints() -> None:
    store = DictionaryStore()
    store.add_space(SPACE)
    with pytest.raises(IntegrityError, match=r"sha256:0 and dim 2, not sha256:9 and 3: it belongs"):
        store.add_space(Space(0, 3, "sha256:9"))


def test_a_load_counts_the_rows_of_all_blocks() -> None:
    store = DictionaryStore()
    assert store.load(SPACE, [rows(1, 2), rows(), rows(3)]) == 3
    assert store.count() == {0: 3}


def test_no_rows_are_no_write(monkeypatch: pytest.MonkeyPatch) -> None:
    store = DictionaryStore()
    store.add_space(SPACE)
    monkeypatch.setattr(store, "_write", None)
    store.upsert(rows())


def test_a_scan_of_one_version_reads_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = DictionaryStore()
    store.load(SPACE, [rows(1, 2, 3)])
    store.load(Space(1, 2, "sha256:1"), [Rows(1, pa.array([4]), np.ones((1, 2), np.float32))])
    assert [part.ids.to_pylist() for part in store.scan(1)] == [[4]]
    assert sorted(key for part in store.scan(size=2) for key in part.ids.to_pylist()) == [
        1,
        2,
        3,
        4,
    ]
    assert all(len(part) <= 2 for part in store.scan(size=2))


def test_a_store_is_closed_at_the_end_of_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: Iterator[str] = iter(["once"])
    store = DictionaryStore()
    monkeypatch.setattr(store, "close", lambda: next(closed))
    with pytest.raises(KeyError), store:
        raise KeyError
    assert list(closed) == []
