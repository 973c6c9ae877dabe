"""A store of one table a version keeps each id in one of them, by the order of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.rows import Checks, Floats, Rows, Space, row_checks
from evergram.stores.store_view import StoreView
from evergram.stores.table_per_version import TablePerVersionStore

T = TypeVar("T")
SPACES = {n: Space(n, 2, f"sha256:{n}") for n in range(3)}


class TablesStore(TablePerVersionStore):
    """A dictionary of ids for each version; `steps` are the calls on its tables, in order."""

    def __init__(self) -> None:
        self.tables: dict[int, set[int]] = {n: set() for n in SPACES}
        self.steps: list[tuple[str, int]] = []
        self.after_get: Callable[[int], None] = lambda version: None

    address, id_type, side = "tables:", pa.int64(), None

    def spaces(self) -> dict[int, Space]:
        return SPACES

    def count(self) -> dict[int, int]:
        return {n: len(ids) for n, ids in self.tables.items() if ids}

    def _writing(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _put(self, rows: Rows, checks: Checks) -> None:
        self.steps.append(("put", rows.version))
        self.tables[rows.version] |= set(rows.ids.to_pylist())

    def _remove(self, version: int, ids: pa.Array) -> None:
        self.steps.append(("remove", version))
        self.tables[version] -= set(ids.to_pylist())

    def _get(self, version: int, ids: pa.Array) -> Iterator[tuple[Rows, Checks]]:
        self.steps.append(("get", version))
        known = pa.array(sorted(self.tables[version]), pa.int64())
        there = ids.filter(pc.is_in(ids, value_set=known))
        if len(there):
            part = rows(version, *there.to_pylist())
            yield part, row_checks(part)
        self.after_get(version)

    def _held(self, version: int, ids: pa.Array) -> pa.Array:
        self.steps.append(("held", version))
        return ids.filter(pc.is_in(ids, value_set=pa.array(self.tables[version], pa.int64())))

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        part = rows(version, *sorted(self.tables[version]))
        yield part, row_checks(part)

    def _best(
        self, version: int, queries: Floats, k: int, among: pa.Array | None, *, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        self.steps.append(("best", k))
        ids = sorted(self.tables[version])[:k]
        return [(pa.array(ids, pa.int64()), -np.array(ids, np.float32)) for _ in queries]

    # Not part of these tests.

    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        raise NotImplementedError

    def build_index(self, codes: IndexCodes = FLOAT32) -> list[int]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def _add_space(self, space: Space) -> None:
        raise NotImplementedError

    def _set_side(self, side: str) -> None:
        raise NotImplementedError


def rows(version: int, *ids: int) -> Rows:
    return Rows(version, pa.array(ids, pa.int64()), np.full((len(ids), 2), version, np.float32))


@pytest.fixture
def store() -> TablesStore:
    return TablesStore()


def fetched(store: TablesStore, *ids: int) -> dict[int, int]:
    return {key: part.version for part in store.fetch(ids) for key in part.ids.to_pylist()}


def test_a_row_is_written_before_it_is_removed_elsewhere(store: TablesStore) -> None:
    store.upsert(rows(1, 7))
    assert store.steps == [("put", 1), ("remove", 0), ("remove", 2)]
    store.upsert(rows(2, 7))
    assert store.count() == {2: 1}


def test_a_killed_write_leaves_the_id_in_two_tables_and_the_later_is_read(
    store: TablesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.upsert(rows(1, 7, 8))
    with monkeypatch.context() as killed:
        killed.setattr(store, "_remove", None)
        with pytest.raises(TypeError):
            store.upsert(rows(2, 7))
    assert store.count() == {1: 2, 2: 1}
    assert fetched(store, 7, 8) == {7: 2, 8: 1}
    # The next write of the id removes the other.
    store.upsert(rows(0, 7))
    assert store.count() == {0: 1, 1: 1}


def test_a_row_that_moves_back_while_tables_are_read_is_met_the_second_time(
    store: TablesStore,
) -> None:
    store.upsert(rows(1, 7))

    def move_back(version: int) -> None:
        # Between the readings of tables 0 and 1.
        if version == 0:
            store.after_get = lambda version: None
            store.upsert(rows(0, 7))

    store.after_get = move_back
    assert fetched(store, 7) == {7: 0}


def test_only_ids_that_are_missing_are_looked_for_again(store: TablesStore) -> None:
    store.upsert(rows(1, 7))
    store.steps.clear()
    assert fetched(store, 7) == {7: 1}
    assert store.steps == [("get", 0), ("get", 1), ("get", 2)]
    store.steps.clear()
    assert fetched(store, 7, 9) == {7: 1}
    assert len(store.steps) == 6


def test_a_deleted_id_is_removed_from_every_table(store: TablesStore) -> None:
    store.upsert(rows(1, 7, 8))
    store.tables[2].add(7)
    store.delete([7])
    assert store.count() == {1: 1}


def test_a_search_looks_further_past_rows_of_which_later_versions_are_held(
    store: TablesStore,
) -> None:
    store.tables = {0: set(range(20)), 1: {0, 1, 2, 9}, 2: {0, 5}}
    query = {0: np.ones((1, 2), np.float32)}
    assert store.search(query, 3)[0].ids.to_pylist() == [3, 4, 6]
    assert [k for step, k in store.steps if step == "best"] == [3, 12]
    store.steps.clear()
    # The last version has no later one: nothing is looked up.
    assert store.search({2: query[0]}, 3)[0].ids.to_pylist() == [0, 5]
    assert store.steps == [("best", 3)]
    assert store.search(query, 30)[0].ids.to_pylist() == sorted({*range(20)} - {0, 1, 2, 5, 9})


def test_earlier_rows_are_left_out_of_a_scan_and_removed_once(store: TablesStore) -> None:
    store.tables = {0: {1, 2, 3}, 1: {2, 3}, 2: {3, 4}}
    living = {(0, 1), (1, 2), (2, 3), (2, 4)}
    assert {(part.version, key) for part in store.scan() for key in part.ids.to_pylist()} == living
    assert store.remove_superseded() == 3
    assert store.tables == {0: {1}, 1: {2}, 2: {3, 4}}
    assert store.remove_superseded() == 0
