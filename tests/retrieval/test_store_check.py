"""Which side a store is taken for: what it says, or what its rows prove."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.dictionary_store import DictionaryStore
from tests.support.golden import TRAINED
from tests.support.lineages import lineage_of

from evergram.errors import DataError, IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.fill import fill, open_stores, space_of, stores_to_fill
from evergram.retrieval.reader import Reader
from evergram.retrieval.store_check import check_store
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Two sides, whose ids are numbers from 0 on, both of them."""
    shutil.copytree(TRAINED, tmp_path / "line")
    return Lineage.open(tmp_path / "line")


def test_a_store_of_the_other_side_is_refused_everywhere(lineage: Lineage) -> None:
    store = DictionaryStore()
    fill(lineage, store, "candidate")
    assert store.side == "candidate"
    before = {rows.version: rows.ids for rows in store.scan()}
    for take in (
        lambda: fill(lineage, store, "query"),
        lambda: Reader(lineage, {"query": store}),
        lambda: Backfill(lineage, store, "query"),
    ):
        with pytest.raises(
            IntegrityError, match="store of side 'candidate' and cannot hold side 'query'"
        ):
            take()
    assert {rows.version: rows.ids for rows in store.scan()} == before
    Reader(lineage, {"candidate": store})


def test_rows_without_a_side_are_of_none(lineage: Lineage) -> None:
    space = space_of(lineage, 2)
    store = DictionaryStore()
    store.add_space(space)
    store.upsert(Rows(2, pa.array([3, 1000]), np.ones((2, space.dim), np.float32)))
    for side in ("query", "candidate"):
        with pytest.raises(IntegrityError, match=r"store\.take_side"):
            check_store(lineage, store, side)
    store.take_side("query")
    check_store(lineage, store, "query")


def test_a_lineage_of_one_side_needs_no_proof(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "files")
    store = DictionaryStore()
    space = space_of(lineage, 2)
    store.add_space(space)
    store.upsert(Rows(2, pa.array([5000]), np.ones((1, space.dim), np.float32)))
    check_store(lineage, store, "object")


def test_the_lineages_own_snapshots_know_their_side(lineage: Lineage) -> None:
    reader = Reader.open(lineage)
    assert {side: reader.store(side).side for side in reader.sides} == {
        "query": "query",
        "candidate": "candidate",
    }
    reader.close()


def test_one_store_is_not_given_for_two_sides(lineage: Lineage, tmp_path: Path) -> None:
    place = tmp_path / "one"
    twice = {"query": str(place), "candidate": f"snapshot:{tmp_path}/../{tmp_path.name}/one"}
    with (
        pytest.raises(DataError, match="given for side 'query' and for side 'candidate'"),
        stores_to_fill(lineage, twice),
    ):
        pass
    assert not place.exists()
    open_store(str(place), create="string").close()
    with pytest.raises(DataError, match="give each its own"):
        open_stores(lineage, twice)


def test_all_stores_are_checked_before_one_is_filled(lineage: Lineage, tmp_path: Path) -> None:
    taken = str(tmp_path / "taken")
    with open_store(taken, create="int64") as store:
        fill(lineage, store, "candidate")
    addresses = {"candidate": str(tmp_path / "new"), "query": taken}
    with (
        pytest.raises(IntegrityError, match="store of side 'candidate'"),
        stores_to_fill(lineage, addresses),
    ):
        pass
