"""Which side a store is taken for: what it says, or what its rows prove."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import lineage_of

from evergram.errors import DataError, IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.lineage.version_reader import VersionReader
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.fill import fill, open_stores, space_of, stored_rows, stores_to_fill
from evergram.retrieval.reader import Reader
from evergram.retrieval.store_check import check_store
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.open_store import open_store
from evergram.stores.snapshot.snapshot_record import OpenRecord, write_record
from evergram.stores.store import Rows, Store

GOLDEN = Path(__file__).parents[1] / "golden"
# Filled with candidates by the Evergram of before stores had a side.
OLD_STORES = ["{}/stores-1/snapshot", "lance:{}/stores-1/lance#films"]


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Two sides, whose ids are numbers from 0 on, both of them."""
    shutil.copytree(GOLDEN / "format-3" / "trained", tmp_path / "line")
    return Lineage.open(tmp_path / "line")


@pytest.fixture(params=OLD_STORES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    shutil.copytree(GOLDEN / "stores-1", tmp_path / "stores-1")
    with open_store(request.param.format(tmp_path)) as store:
        assert store.side is None
        yield store


def without_a_side(lineage: Lineage, *sides: str) -> DictionaryStore:
    """Filled with one side after the other, as all could once be."""
    store = DictionaryStore()
    for side in sides:
        store._side = None
        fill_unasked(lineage, store, side)
    store._side = None
    return store


def fill_unasked(lineage: Lineage, store: Store, side: str) -> None:
    space = space_of(lineage, lineage.newest)
    ids, vectors = lineage.embeddings(side)
    store.load(space, [stored_rows(lineage, VersionMaps(lineage), space, ids, vectors.numpy())])


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


def test_an_old_store_is_of_the_side_of_its_rows(lineage: Lineage, old: Store) -> None:
    for take in (
        lambda: fill(lineage, old, "query"),
        lambda: Reader(lineage, {"query": old}),
        lambda: Backfill(lineage, old, "query"),
    ):
        with pytest.raises(IntegrityError, match="cannot be used for side 'query': its rows are"):
            take()
    Reader(lineage, {"candidate": old})
    assert old.side is None, "a reader writes nothing"
    rows = {key for part in old.scan() for key in part.ids.to_pylist()}
    assert fill(lineage, old, "candidate") == len(rows) == 18
    assert old.side == "candidate"
    with open_store(old.address) as again:
        assert again.side == "candidate"
        assert again.count() == {2: 18}
        with pytest.raises(IntegrityError, match="side 'candidate' and cannot hold side 'query'"):
            fill(lineage, again, "query")


def test_an_old_store_takes_its_side_when_it_is_refreshed(lineage: Lineage, old: Store) -> None:
    work = Backfill(lineage, old, "candidate")
    work.plan()
    assert old.side is None
    work.apply()
    assert old.side == "candidate"


def test_an_empty_old_store_is_of_the_side_it_is_filled_with(lineage: Lineage, old: Store) -> None:
    for ids in [rows.ids for rows in old.scan()]:
        old.delete(ids)
    fill(lineage, old, "query")
    assert old.side == "query"


def test_rows_of_both_sides_are_taken_for_neither(lineage: Lineage) -> None:
    """Candidates, and then queries over and beside them: what one got before."""
    # There are more queries than candidates, and all that have a candidate's id replaced it.
    store = without_a_side(lineage, "query", "candidate")
    for side in ("query", "candidate"):
        with pytest.raises(IntegrityError, match=r"rows are of 'candidate' and of 'query'\. Fill"):
            check_store(lineage, store, side)


def test_without_canaries_the_published_file_decides(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VersionReader, "canaries", lambda self: {})
    store = without_a_side(lineage, "candidate")
    check_store(lineage, store, "candidate")
    with pytest.raises(IntegrityError, match="its rows are of 'candidate'"):
        check_store(lineage, store, "query")


def test_canaries_decide_where_the_file_is_gone(lineage: Lineage) -> None:
    """Rows of version 1, whose embeddings the lineage no longer holds."""
    space = space_of(lineage, 1)
    store = DictionaryStore()
    store.add_space(space)
    ids, vectors = lineage.canaries(1)["query"]
    rows = stored_rows(lineage, VersionMaps(lineage), space, ids.cast(pa.int64()), vectors.numpy())
    store.upsert(rows)
    check_store(lineage, store, "query")
    with pytest.raises(IntegrityError, match="its rows are of 'query'"):
        check_store(lineage, store, "candidate")


def test_rows_that_were_never_published_prove_nothing(lineage: Lineage) -> None:
    space = space_of(lineage, 2)
    store = DictionaryStore()
    store.add_space(space)
    store.upsert(Rows(2, pa.array([3, 1000]), np.ones((2, space.dim), np.float32)))
    for side in ("query", "candidate"):
        with pytest.raises(IntegrityError, match=r"none of its rows .* store\.take_side"):
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


def test_the_lineages_own_snapshots_of_before_are_read(lineage: Lineage) -> None:
    """They say nothing, and are what their rows are."""
    Reader.open(lineage).close()
    for side in ("query", "candidate"):
        path = lineage.path / "stores" / side / "store.json"
        write_record(path, replace(OpenRecord(path).record, side=None))
    reader = Reader.open(lineage)
    assert {reader.store(side).side for side in reader.sides} == {None}
    reader.close()
    folder = lineage.path / "stores"
    (folder / "query").rename(folder / "other")
    (folder / "candidate").rename(folder / "query")
    (folder / "other").rename(folder / "candidate")
    with pytest.raises(IntegrityError, match="cannot be used for side"):
        Reader.open(lineage)


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
