"""A writer that is killed between its two steps leaves an id in two versions: the later counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.agreement import as_dict, same_hits, same_rows
from tests.support.store_kinds import STORES
from tests.support.store_pairs import DIMS, NEW, OLD, Pair

from evergram.errors import StoreError
from evergram.stores.table_per_version import TablePerVersionStore


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["int64", "string"])
def pair(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    id_type = str(request.param)
    both = Pair(lambda: STORES[kind](tmp_path, id_type), id_type)
    yield both
    both.store.close()


def killed(pair: Pair, monkeypatch: pytest.MonkeyPatch, numbers: range) -> bool:
    """Move rows to the new version, killed before they are removed from the old one. Returns:
    whether the store has such a step; else nothing is written."""
    rows = pair.rows(NEW.version, pair.names(numbers))

    def die(*_: Any) -> None:
        raise StoreError("killed")

    if not hasattr(type(pair.store), "_remove"):
        return False
    with monkeypatch.context() as during:
        during.setattr(type(pair.store), "_remove", die)
        with pytest.raises(StoreError, match="killed"):
            pair.store.upsert(rows)
    pair.reopen()
    if not isinstance(pair.store, TablePerVersionStore):
        return True  # one transaction: it was undone
    pair.oracle.upsert(rows)
    assert sum(pair.store.count().values()) > sum(pair.oracle.count().values())
    return True


def test_only_the_later_row_of_an_id_is_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.fill()
    killed(pair, monkeypatch, range(15))
    there = as_dict(pair.oracle.scan())
    assert as_dict(pair.store.scan()) == there
    assert as_dict(pair.store.scan(OLD.version, size=2)) == as_dict(pair.oracle.scan(OLD.version))
    assert as_dict(pair.store.fetch(pair.names(range(40)))) == there
    queries = pair.queries()
    # Of the old version alone, the rows that were moved are gone: they are of the new one.
    for asked in (queries, {OLD.version: queries[OLD.version]}):
        for k in (1, 3, 7, 100):
            same_hits(pair.store, pair.oracle, asked, k)
        same_hits(pair.store, pair.oracle, asked, 3, ids=pair.names(range(10, 25)))


@pytest.mark.parametrize("how", ["remove_superseded", "written again"])
def test_it_is_repaired(pair: Pair, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.fill()
    two_steps = killed(pair, monkeypatch, range(15)) and isinstance(
        pair.store, TablePerVersionStore
    )
    if how == "written again":
        pair.upsert(pair.rows(NEW.version, pair.names(range(15))))
        two_steps = False
    assert pair.store.remove_superseded() == (15 if two_steps else 0)
    same_rows(pair.store, pair.oracle)
    assert pair.store.remove_superseded() == 0
    pair.reopen()
    same_rows(pair.store, pair.oracle)


def test_a_row_that_was_to_move_back_stays_in_the_later_version(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.fill()
    before = as_dict(pair.store.scan())
    back = pair.rows(OLD.version, pair.names(range(30, 35)))

    def die(*_: Any) -> None:
        raise StoreError("killed")

    if not hasattr(type(pair.store), "_remove"):
        return
    with monkeypatch.context() as during:
        during.setattr(type(pair.store), "_remove", die)
        with pytest.raises(StoreError, match="killed"):
            pair.store.upsert(back)
    assert as_dict(pair.store.scan()) == before
    same_hits(pair.store, pair.oracle, pair.queries(), 40)
    pair.upsert(back)
    same_rows(pair.store, pair.oracle)


def test_a_deleted_id_is_gone_from_both(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.fill()
    killed(pair, monkeypatch, range(15))
    for store in pair.both:
        store.delete(pa.array(pair.names(range(12)), store.id_type))
    assert as_dict(pair.store.scan()) == as_dict(pair.oracle.scan())
    same_hits(pair.store, pair.oracle, pair.queries(), 40)
    assert DIMS.keys() == pair.store.spaces().keys()
