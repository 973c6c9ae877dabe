"""Which store a version is read from, and who closes the stores."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.dictionary_store import DictionaryStore

from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.retrieval import side_stores
from evergram.retrieval.fill import fill
from evergram.retrieval.side_stores import SideStores, opened_stores


class ClosingStore(DictionaryStore):
    """A store that counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def filled(lineage: Lineage) -> ClosingStore:
    store = ClosingStore()
    fill(lineage, store, "object")
    return store


def test_later_versions_than_the_settled_are_read_beside(lineage: Lineage) -> None:
    store, beside = filled(lineage), filled(lineage)
    stores = SideStores(lineage, {"object": store}, {"object": beside}, settled=1)
    assert stores.sides == ("object",)
    assert stores.of() is store
    assert [stores.at(None, version) for version in (0, 1, 2)] == [store, store, beside]
    with pytest.raises(LineageError, match="no side 'candidate' here; there is object"):
        stores.of("candidate")
    stores.close()
    assert (store.closed, beside.closed) == (1, 1)
    with pytest.raises(LineageError, match="without a store"):
        SideStores(lineage, {})


def failing(lineage: Lineage, stores: dict[str, Any]) -> None:
    with opened_stores(lineage, stores, None) as (by_side, canaries):
        assert list(by_side) == ["object"]
        assert canaries == {}
        raise DataError("wrong")


def test_own_stores_are_left_open_and_opened_ones_closed_when_the_block_fails(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, opened = filled(lineage), filled(lineage)
    with pytest.raises(DataError):
        failing(lineage, {"object": own})
    assert own.closed == 0
    monkeypatch.setattr(side_stores, "open_stores", lambda *_: {"object": opened})
    with pytest.raises(DataError):
        failing(lineage, {"object": "address"})
    assert opened.closed == 1
    with opened_stores(lineage, {"object": "address"}, None):
        pass
    assert opened.closed == 1
