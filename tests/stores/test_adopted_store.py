"""A table or a collection of somebody's own is never written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.lineages import lineage_of
from tests.support.own_stores import OWN, own_store

from evergram.errors import StoreError
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.fill import fill
from evergram.retrieval.stores_by_address import fill_stores
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows, Space

ROWS = Rows(0, pa.array([1]), np.ones((1, 6), np.float32))


@pytest.mark.parametrize("kind", sorted(OWN))
@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.upsert(ROWS),
        lambda store: store.load(Space(0, 6, ""), [ROWS]),
        lambda store: store.delete([1]),
        lambda store: store.add_space(Space(1, 6, "")),
        lambda store: store.take_side("object"),
        lambda store: store.build_index(),
        lambda store: store._write(ROWS, np.zeros(1, np.uint32)),
        lambda store: store._delete(pa.array([1])),
        lambda store: store._add_space(Space(1, 6, "")),
        lambda store: store._set_side("object"),
    ],
)
def test_every_write_is_refused(
    kind: str, write: Callable[[AdoptedStore], None], tmp_path: Path
) -> None:
    with open_store(own_store(kind, tmp_path / "own", 10)) as store:
        assert isinstance(store, AdoptedStore)
        with pytest.raises(StoreError, match=r"only reads\. Write new vectors"):
            write(store)
        assert store.side is None
        assert store.count() == {0: 10}


@pytest.mark.parametrize("kind", sorted(OWN))
def test_fill_and_backfill_refuse_a_table(kind: str, tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", canaries=2)
    address = own_store(kind, tmp_path / "own")
    with pytest.raises(StoreError, match="only reads"):
        fill_stores(lineage, {"object": address})
    with open_store(address) as store:
        for refused in (
            lambda: fill(lineage, store, "object"),
            lambda: Backfill(lineage, store, "object"),
        ):
            with pytest.raises(StoreError, match="only reads"):
                refused()
    assert not (tmp_path / "line" / "backfills").exists()


@pytest.mark.parametrize("kind", sorted(OWN))
def test_a_row_belongs_to_its_newest_vector(kind: str, tmp_path: Path) -> None:
    address = own_store(kind, tmp_path / "own", 20, {0: range(15), 1: range(5, 10)})
    with open_store(address) as store:
        assert store.count() == {0: 10, 1: 5}
        assert store.filled() == store.spaces()
        assert {rows.version: len(rows) for rows in store.fetch(list(range(20)))} == {0: 10, 1: 5}
        ids = [i for rows in store.scan(0, size=3) for i in rows.ids.to_pylist()]
        assert sorted(ids) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
        asked = [3, 7, 19, -1, 2**62]
        (hits,) = store.search({0: np.ones((1, 6), np.float32)}, 9, ids=asked)
        assert hits.ids.to_pylist() == [3]


@pytest.mark.parametrize("kind", sorted(OWN))
def test_a_closed_store_says_so(kind: str, tmp_path: Path) -> None:
    if kind == "pgvector-table":
        pytest.skip("the errors of its connections are tested in test_connection.py")
    store = open_store(own_store(kind, tmp_path / "own", 5))
    for _ in range(2):
        store.close()
    with pytest.raises(StoreError, match="was closed; open it again"):
        store.count()
