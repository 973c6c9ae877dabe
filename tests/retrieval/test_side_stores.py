"""Which store a version is read from, and who closes the stores."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.dictionary_store import DictionaryStore

from evergram.errors import DataError, LineageError, StoreError
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
    with pytest.raises(LineageError, match="no side 'candidate' in the stores; it has object"):
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


def test_canaries_are_closed_when_the_block_fails(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, canary = filled(lineage), filled(lineage)
    monkeypatch.setattr(side_stores, "open_stores", lambda *_: {"object": opened})
    monkeypatch.setattr(side_stores, "canary_stores", lambda *_: {"object": canary})
    with (
        pytest.raises(DataError, match="wrong"),
        opened_stores(lineage, {"object": "address"}, None),
    ):
        raise DataError("wrong")
    assert (opened.closed, canary.closed) == (1, 1)


def test_a_store_that_does_not_open_again_closes_those_that_did(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ClosingStore] = []

    def opening(address: str) -> ClosingStore:
        if len(made) == 2:
            raise StoreError("too many connections")
        made.append(filled(lineage))
        return made[-1]

    canary = filled(lineage)
    stores = SideStores(lineage, {"object": filled(lineage)}, {"object": canary})
    stores._stores["other"] = stores.of()
    monkeypatch.setattr(ClosingStore, "open", opening, raising=False)
    with pytest.raises(StoreError, match="too many"), stores.opened_again(lineage):
        raise AssertionError("all were opened")
    assert [store.closed for store in made] == [1, 1]
    assert canary.closed == 0
    del stores._stores["other"]
    made.clear()
    with stores.opened_again(lineage) as (by_side, canaries, settled):
        assert [*by_side.values(), *canaries.values()] == made[::-1]
        assert settled == lineage.production
    assert [store.closed for store in made] == [0, 0]
