"""Stores of a lineage: filled, of one side, closed; and nothing outside of it is touched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from tests.support.dictionary_store import DictionaryStore
from tests.support.encoders import lineage_with_encoder, without_recorded_pairs
from tests.support.lineages import TRAINED, lineage_of, publish, vectors_of
from tests.support.older_stores import store_of_a_withdrawn_version
from tests.support.outside import SECRET, outside_folder
from tests.support.publishing import publish_next

from evergram.errors import DataError, IntegrityError, UnknownVersionError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.fill import (
    canary_stores,
    fill,
    local_stores,
    open_stores,
    space_of,
    stored_rows,
    stores_to_fill,
)
from evergram.retrieval.reader import Reader
from evergram.retrieval.store_check import check_store
from evergram.retrieval.stores_by_address import fill_stores
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.open_store import open_store
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Rows, Space

pytestmark = pytest.mark.usefixtures("backfill_in_memory")


def sources(lineage: Lineage, ids: list[int], version: int) -> list[int]:
    """Return the versions that the lineage's own snapshots hold ids of."""
    with closing(Reader.open(lineage)) as reader:
        read: list[int] = reader.embed(ids, version).sources.tolist()
    return read


def test_filling_replaces_rows_of_a_withdrawn_version_and_of_no_other_lineage(
    lineage: Lineage,
) -> None:
    store = DictionaryStore()
    store.add_space(Space(2, space_of(lineage, 2).dim, "sha256:another"))
    with pytest.raises(IntegrityError, match="belongs to another lineage"):
        fill(lineage, store, "object")
    assert store.count() == {}
    store = DictionaryStore()
    store.add_space(space_of(lineage, 2, norms=False))
    assert fill(lineage, store, "object") == 300
    lineage.label("kept", 2)
    store, _ = store_of_a_withdrawn_version(lineage)
    store.upsert(Rows(3, pa.array([5000]), np.ones((1, store.spaces()[3].dim), np.float32)))
    assert fill(lineage, store, "object") == 300
    assert store.count() == {2: 300}
    Reader(lineage, {"object": store})


def test_the_lineages_own_snapshots_outlive_a_withdrawal(lineage: Lineage) -> None:
    """Version 3 has objects that version 2 has not."""
    lineage.label("kept", 2)
    publish(lineage, 3, rows=350)
    Reader.open(lineage).close()
    lineage.label("stable", 2)
    Reader.open(lineage).close()
    lineage.withdraw(3, "it was bad")
    assert sources(lineage, [0, 349], 2) == [2, -1]


def test_a_vector_that_is_too_long_for_its_norm_is_named(lineage: Lineage) -> None:
    vectors = np.array([[1.0] * 8, [1e30] * 8], np.float32)
    with pytest.raises(DataError, match=r"id 8 of version 1"):
        stored_rows(lineage, VersionMaps(lineage), space_of(lineage, 1), pa.array([7, 8]), vectors)


def test_local_stores_are_filled_when_production_moves_and_only_then(lineage: Lineage) -> None:
    calls: list[tuple[str, int, int, int]] = []

    def filled() -> dict[str, dict[int, int]]:
        stores = local_stores(lineage, lambda *rows: calls.append(rows))
        counts = {side: store.count() for side, store in stores.items()}
        for store in stores.values():
            store.close()
        return counts

    assert filled() == {"object": {2: 300}}
    # Rows that were deleted stay deleted.
    with open_store(str(lineage.path / "stores" / "object"), create="int64") as store:
        store.delete(pa.array([3]))
    assert filled() == {"object": {2: 299}}
    publish(lineage, 3)
    assert filled() == {"object": {3: 300}}
    assert calls == [("object", 2, 300, 300), ("object", 3, 300, 300)]


@pytest.mark.parametrize("how", ["killed after its rows", "by a command"])
def test_a_snapshot_with_rows_of_another_version_is_filled_again(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its marker would say version 2 for rows of version 3, and a rollback would believe it."""
    lineage.label("kept", 2)
    Reader.open(lineage).close()
    publish(lineage, 3)
    if how == "by a command":
        with open_store(str(lineage.path / "stores" / "object"), create="int64") as store:
            fill(lineage, store, "object")
    else:
        with monkeypatch.context() as patch:
            # The package has a function of the module's name.
            module, killed = sys.modules["evergram.retrieval.fill"], Mock(side_effect=SystemExit)
            patch.setattr(module, "write_text", killed)
            with pytest.raises(SystemExit):
                Reader.open(lineage)
    lineage.label("stable", 2)
    with closing(Reader.open(lineage)) as reader:
        embedded = reader.embed([0, 7], 2)
    assert embedded.sources.tolist() == [2, 2]
    np.testing.assert_array_equal(embedded.vectors, vectors_of(2)[[0, 7]].numpy())


def test_versions_of_one_space_are_filled_each(tmp_path: Path) -> None:
    """One encoder that is kept has one fingerprint, though its vectors change with the data."""
    lineage = lineage_with_encoder(tmp_path / "films")
    ids, vectors = lineage.embeddings("candidate")
    assert sources(lineage, ids.to_pylist(), 0) == [0] * 40
    artefact = without_recorded_pairs(lineage)
    moved = {**artefact.embeddings, "candidate": (ids, 2 * vectors)}
    publish_next(lineage, replace(artefact, embeddings=moved))
    assert lineage.manifest(1).fingerprint == lineage.manifest(0).fingerprint
    with closing(Reader.open(lineage)) as reader:
        assert reader.store("candidate").count() == {1: 40}
        np.testing.assert_allclose(reader.embed(ids).vectors, 2 * vectors.numpy(), rtol=1e-6)


def test_a_canary_has_stores_of_its_own_until_it_is_promoted(lineage: Lineage) -> None:
    assert canary_stores(lineage) == {}
    publish(lineage, 3, promote=False)
    (store,) = canary_stores(lineage).values()
    assert store.count() == {3: 300}
    store.close()
    folder = lineage.path / "stores" / ".canary"
    assert folder.is_dir()
    lineage.promote()
    assert canary_stores(lineage) == {}
    assert not folder.exists()


def test_a_snapshot_of_the_newest_version_has_ids_as_a_table_of_ones_own_has_them(
    tmp_path: Path,
) -> None:

    lineage = lineage_of(tmp_path / "l", 1, canaries=3)
    publish(lineage, 1, promote=False, canaries=3)
    store = DictionaryStore("string")
    store.add_space(space := space_of(lineage, 0))
    own, ids = vectors_of(0).numpy(), pa.array(map(str, range(300)))
    store.upsert(stored_rows(lineage, VersionMaps(lineage), space, ids, own))
    newest = vectors_of(1).numpy()
    with closing(Reader.open(lineage.path, {"object": store})) as reader:
        np.testing.assert_allclose(reader.embed(["7"], 1).vectors[0], newest[7], rtol=1e-6)
        nearest = ((newest - newest[7]) ** 2).sum(axis=1).argsort()[:2]
        hits = reader.search(newest[7], 2, 1, metric="l2")[0]
        assert hits.ids.to_pylist() == [str(i) for i in nearest]
    with closing(Reader.open(lineage.path)) as reader:  # its own snapshots have integers
        np.testing.assert_allclose(reader.embed([7], 1).vectors[0], newest[7], rtol=1e-6)


def test_stores_are_closed_where_another_cannot_be_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage, closed = lineage_with_encoder(tmp_path / "films"), list[str]()
    monkeypatch.setattr(
        SnapshotStore, "close", lambda store: closed.append(Path(store.address).name)
    )
    sides = list(lineage.manifest(lineage.production).embeddings)

    def full(side: str, *_: int) -> None:
        if side == sides[-1]:
            raise DataError("the disk is full")

    with pytest.raises(DataError, match="disk is full"):
        local_stores(lineage, full)
    assert sorted(closed) == sorted(sides)


def test_a_store_of_ones_own_that_is_refused_is_left_open(lineage: Lineage, tmp_path: Path) -> None:
    class Closing(DictionaryStore):
        def close(self) -> None:
            raise AssertionError("it is not the reader's")

    store = Closing()
    fill(lineage, store, "object")
    with pytest.raises(IntegrityError):
        Reader.open(lineage_of(tmp_path / "another", 1), {"object": store})


@pytest.fixture(scope="module")
def sided(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    """Two sides, whose ids are numbers from 0 on, both of them."""
    place = tmp_path_factory.mktemp("sided") / "line"
    shutil.copytree(TRAINED, place)
    return Lineage.open(place)


def test_a_store_of_the_other_side_is_refused_everywhere(sided: Lineage, tmp_path: Path) -> None:
    store = DictionaryStore()
    fill(sided, store, "candidate")
    before = {rows.version: rows.ids for rows in store.scan()}
    takes: list[Callable[[], object]] = [
        lambda: fill(sided, store, "query"),
        lambda: Reader(sided, {"query": store}),
        lambda: Backfill(sided, store, "query"),
    ]
    for take in takes:
        with pytest.raises(IntegrityError, match="side 'candidate' and cannot hold side 'query'"):
            take()
    assert {rows.version: rows.ids for rows in store.scan()} == before
    Reader(sided, {"candidate": store})
    # All stores are checked before one is filled.
    taken = str(tmp_path / "taken")
    with open_store(taken, create="int64") as opened:
        fill(sided, opened, "candidate")
    addresses = {"candidate": str(tmp_path / "new"), "query": taken}
    with (
        pytest.raises(IntegrityError, match="store of side 'candidate'"),
        stores_to_fill(sided, addresses),
    ):
        pass
    # Rows without a side are of none.
    store, space = DictionaryStore(), space_of(sided, 2)
    store.add_space(space)
    store.upsert(Rows(2, pa.array([3, 1000]), np.ones((2, space.dim), np.float32)))
    for side in ("query", "candidate"):
        with pytest.raises(IntegrityError, match=r"store\.take_side"):
            check_store(sided, store, side)
    store.take_side("query")
    check_store(sided, store, "query")


def test_one_store_is_not_given_for_two_sides(sided: Lineage, tmp_path: Path) -> None:
    place = tmp_path / "one"
    twice = {"query": str(place), "candidate": f"snapshot:{tmp_path}/../{tmp_path.name}/one"}
    with (
        pytest.raises(DataError, match="given for side 'query' and for side 'candidate'"),
        stores_to_fill(sided, twice),
    ):
        pass
    assert not place.exists()
    open_store(str(place), create="string").close()
    with pytest.raises(DataError, match="give each its own"):
        open_stores(sided, twice)


def test_a_store_is_filled_with_a_version_before_it_is_promoted(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    publish(lineage, 1, promote=False)
    (filled,) = fill_stores(lineage, {"object": str(tmp_path / "new")}, version="newest")
    assert (lineage.production, filled.held) == (0, {1: 300})
    (filled,) = fill_stores(lineage, {"object": str(tmp_path / "old")})
    assert filled.held == {0: 300}
    assert fill(lineage, own := DictionaryStore(), "object") == 300
    assert own.count() == {0: 300}
    with pytest.raises(UnknownVersionError):
        fill_stores(lineage, {"object": str(tmp_path / "none")}, version=7)
    assert not (tmp_path / "none").exists()


def test_a_store_of_the_lineage_and_a_backfill_stay_in_it(lineage: Lineage, tmp_path: Path) -> None:
    """A store removes what it does not list."""
    (store,) = local_stores(lineage).values()
    store.close()
    work = Backfill(lineage, store, "object")
    work.plan()
    outside, moved = outside_folder(tmp_path), lineage.path / "moved"
    asks: dict[Path, Callable[[], object]] = {
        lineage.path / part: lambda: local_stores(lineage)
        for part in ("stores", "stores/object", "stores/object/segments")
    } | {work.folder / "journal": lambda: Backfill(lineage, store, "object")}
    for place, ask in asks.items():
        place.rename(moved)
        place.symlink_to(outside)
        with pytest.raises(IntegrityError, match="by a symbolic link"):
            ask()
        place.unlink()
        moved.rename(place)
    assert (outside / "own").read_bytes() == SECRET
    # Its `store.json` names files, with a checksum that anybody can make.
    path = lineage.path / "stores/object/store.json"
    record = json.loads(path.read_text())
    body, segments = record["store"], lineage.path / "stores/object/segments"
    body["segments"][0]["number"] = os.path.relpath(outside / "own", segments)
    record["sha256"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(record))
    with pytest.raises(IntegrityError, match="damaged"):
        local_stores(lineage)
    assert (outside / "own").read_bytes() == SECRET
