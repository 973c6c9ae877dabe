"""A table of somebody's own is never written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.lineages import lineage_of
from tests.support.own_tables import address_of, own_table

from evergram.errors import StoreError
from evergram.retrieval.backfill import Backfill
from evergram.retrieval.fill import fill
from evergram.retrieval.stores_by_address import fill_stores
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows, Space

ROWS = Rows(0, pa.array([1]), np.ones((1, 6), np.float32))


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
def test_every_write_is_refused(write: Callable[[AdoptedStore], None]) -> None:
    with open_store(address_of(own_table(10))) as store:
        assert isinstance(store, AdoptedStore)
        with pytest.raises(StoreError, match=r"only reads\. Write new vectors"):
            write(store)
        assert store.side is None
        assert store.count() == {0: 10}


def test_fill_and_backfill_refuse_a_table(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", canaries=2)
    address = address_of(own_table())
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
