"""Stores of a lineage: filled, of one side, closed; and nothing outside of it is touched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import Id, as_dict
from tests.support.dictionary_store import DictionaryStore
from tests.support.encoders import lineage_with_encoder, without_recorded_pairs
from tests.support.lineages import TRAINED, lineage_of, publish, read_as, vectors_of
from tests.support.outside import SECRET, outside_folder
from tests.support.publishing import publish_next

from evergram.errors import DataError, IntegrityError, LineageError, StoreError, UnknownVersionError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfill import (
    RECORD,
    UNREAD,
    UNREADABLE,
    Backfill,
    backfill_progress,
    fill_stores,
    planned_rows,
)
from evergram.retrieval.fill import (
    canary_stores,
    check_store,
    fill,
    local_stores,
    open_stores,
    space_of,
)
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_maps import VersionMaps, stored_rows
from evergram.stores import qdrant_store
from evergram.stores.open_store import open_store
from evergram.stores.snapshot_store import SnapshotStore
from evergram.stores.store import Rows, Space, Store
from evergram.stores.table_per_version import TablePerVersionStore


def older_store(lineage: Lineage, rows: int = 300) -> DictionaryStore:
    """A store as it was when version 1 was the newest, and 20 objects that were added by hand."""
    store = DictionaryStore()
    space = space_of(lineage, 1)
    store.add_space(space)
    ids = pa.array([*range(rows), *range(1000, 1020)])
    vectors = np.concatenate([vectors_of(1).numpy()[:rows], np.ones((20, 8), np.float32)])
    store.upsert(stored_rows(VersionMaps(lineage), space, ids, vectors))
    return store


def store_of_a_withdrawn_version(lineage: Lineage) -> tuple[DictionaryStore, dict[Id, Any]]:
    """Version 3 was published, 100 rows were refreshed to it, and it was taken back."""
    store = DictionaryStore()
    fill(lineage, store, "object")
    before = as_dict(store.scan())
    publish(lineage, 3)
    Backfill(lineage, store, "object").plan(batch=50)
    Backfill(lineage, store, "object").apply(rows=100)
    lineage.label("stable", 2)
    lineage.withdraw(3, "it was bad")
    return store, before


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
        stored_rows(VersionMaps(lineage), space_of(lineage, 1), pa.array([7, 8]), vectors)


def test_local_stores_are_filled_when_production_moves_and_only_then(lineage: Lineage) -> None:
    def filled() -> dict[str, dict[int, int]]:
        stores = local_stores(lineage)
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
            patch.setattr(sys.modules[fill.__module__], "write_text", Mock(side_effect=SystemExit))
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
    store.upsert(stored_rows(VersionMaps(lineage), space, ids, own))
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

    def full(_: Lineage, store: Store, side: str, version: int) -> None:
        if side == sides[-1]:
            raise DataError("the disk is full")

    monkeypatch.setattr(sys.modules[fill.__module__], "fill", full)
    with pytest.raises(DataError, match="disk is full"):
        local_stores(lineage)
    assert sorted(closed) == sorted(sides)


def test_a_store_of_ones_own_that_is_refused_is_left_open(lineage: Lineage, tmp_path: Path) -> None:
    store = DictionaryStore()
    fill(lineage, store, "object")
    with patch.object(store, "close") as close, pytest.raises(IntegrityError):
        Reader.open(lineage_of(tmp_path / "another", 1), {"object": store})
    assert not close.called


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
    with pytest.raises(IntegrityError, match="store of side 'candidate'"):
        fill_stores(sided, addresses)
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
    with pytest.raises(DataError, match="two of the sides"):
        fill_stores(sided, {"query": str(place), "candidate": str(place)})
    assert not place.exists()
    twice = {"query": str(place), "candidate": f"snapshot:{tmp_path}/../{tmp_path.name}/one"}
    with pytest.raises(DataError, match="two of the sides query, candidate"):
        fill_stores(sided, twice)
    fill_stores(sided, {"query": str(place)})
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
    (work.folder / "saved").mkdir()
    outside, moved = outside_folder(tmp_path), lineage.path / "moved"
    asks: dict[Path, Callable[[], object]] = {
        lineage.path / part: lambda: local_stores(lineage)
        for part in ("stores", "stores/object", "stores/object/segments")
    } | {work.folder / "saved": lambda: Backfill(lineage, store, "object")}
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
    body["segments"][0]["vectors"] = os.path.relpath(outside / "own", segments)
    record["sha256"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(record))
    with pytest.raises(IntegrityError, match="damaged"):
        local_stores(lineage)
    assert (outside / "own").read_bytes() == SECRET


@pytest.fixture
def older(lineage: Lineage) -> DictionaryStore:
    return older_store(lineage)


def planned(lineage: Lineage, older: Store, batch: int = 64) -> Backfill:
    work = Backfill(lineage, older, "object")
    work.plan(batch)
    return work


def written_by_hand(lineage: Lineage, version: int, key: int, value: float) -> Rows:
    space = space_of(lineage, version)
    dim = lineage.manifest(version).dim
    vectors = np.full((1, dim), value, np.float32)
    return stored_rows(VersionMaps(lineage), space, pa.array([key]), vectors)


def test_plan_apply_and_status(lineage: Lineage, older: DictionaryStore) -> None:
    work = Backfill(lineage, older, "object")
    with pytest.raises(LineageError, match="backfill plan"):
        work.status()
    older.delete(range(5))  # objects without a row, which are counted and not added
    plan = work.plan(batch=64)
    assert (plan.state, plan.rows, plan.remaining) == ("planned", 295, 1.0)
    part = work.apply(rows=100)
    # A whole batch and a part of one.
    assert (part.state, part.refreshed, part.held) == ("paused", 100, {1: 215, 2: 100})
    assert 0 < part.remaining < 1
    with pytest.raises(LineageError, match="is paused"):
        work.plan()
    # Half way, every row is still what its version reads.
    embedded = Reader(lineage, {"object": older}).embed(range(300), 0)
    for version in (1, 2):
        mine = embedded.sources == version
        truth = read_as(version, 0).numpy()[mine]
        np.testing.assert_allclose(embedded.vectors[mine], truth, rtol=1e-5, atol=1e-6)
    done = Backfill(lineage, older, "object").apply()
    assert (done.state, done.refreshed, done.remaining) == ("applied", 295, 0.0)
    assert done.held == {1: 20, 2: 295}
    assert Backfill(lineage, older, "object").apply() == done


def test_a_rollback_puts_back_all_rows_but_those_written_since(
    lineage: Lineage, older: DictionaryStore
) -> None:
    before = as_dict(older.scan())
    work = planned(lineage, older)
    work.apply(rows=200)
    added = next(i for rows in older.scan(2) for i in rows.ids.to_pylist())
    older.upsert(written_by_hand(lineage, 2, added, 7))
    before[added] = as_dict(older.fetch([added]))[added]
    back = work.rollback()
    assert (back.state, back.held) == ("rolled back", {1: 319, 2: 1})
    assert as_dict(older.scan()) == before
    with pytest.raises(LineageError, match="rolled back"):
        work.apply()
    assert work.plan().rows == 299


def test_a_rollback_puts_back_all_parts_of_a_batch(
    lineage: Lineage, older: DictionaryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qdrant answers in several requests, and the store returns the rows of each by themselves."""
    monkeypatch.setattr(qdrant_store, "POINTS", 100)
    before = as_dict(older.scan())
    with open_store(f"qdrant:{tmp_path}/q#emb", create="int64") as store:
        for version, space in older.spaces().items():
            store.load(space, older.scan(version))
        work = planned(lineage, store, 400)
        assert work.apply().held == {1: 20, 2: 300}
        assert work.rollback().held == {1: 320}
        assert as_dict(store.scan()) == before


@pytest.mark.parametrize("fails", [1, 2, 5])
def test_a_store_that_fails_at_any_write_loses_nothing(
    lineage: Lineage, older: DictionaryStore, fails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes away at the n-th write, before or after it has written, and comes back."""
    monkeypatch.setattr("evergram.stores.store.BATCH", 64)
    before = as_dict(older.scan())
    work = planned(lineage, older)
    write = older._write
    for step in (work.apply, work.rollback):
        calls: list[int] = []

        def failing(rows: Rows, checks: np.ndarray, calls: list[int] = calls) -> None:
            calls.append(1)
            if len(calls) != fails or not fails % 2:
                write(rows, checks)
            if len(calls) == fails:
                raise StoreError("the database went away")

        with monkeypatch.context() as during:
            during.setattr(older, "_write", failing)
            with pytest.raises(StoreError):
                step()
        step()
        assert older.count() == ({1: 20, 2: 300} if step == work.apply else {1: 320})
    assert as_dict(older.scan()) == before


def test_a_backfill_of_another_lineage_or_with_damaged_files_is_refused(
    lineage: Lineage, older: DictionaryStore
) -> None:
    other = DictionaryStore()
    other.add_space(Space(1, 8, "sha256:other"))
    other.upsert(Rows(1, pa.array([1]), np.ones((1, 8), np.float32)))
    with pytest.raises(IntegrityError, match="another lineage"):
        Backfill(lineage, other, "object")
    work = planned(lineage, older)
    work.apply(rows=1)
    whole = json.loads((work.folder / RECORD).read_text())
    for name, damaged in (
        *((RECORD, {**whole, **one}) for one in ({"target": True}, {"rows": -1})),
        *((RECORD, {**whole, **one}) for one in ({"state": "lost"},)),
        *((RECORD, {"target": 2}), (RECORD, [])),
        ("order/store.json", {"target": 2}),
    ):
        before = (work.folder / name).read_bytes()
        (work.folder / name).write_bytes(json.dumps(damaged).encode())
        with pytest.raises(IntegrityError, match=name):
            work.apply()
        (work.folder / name).write_bytes(before)
    assert work.apply().state == "applied"


@pytest.mark.long
def test_killed_two_hundred_times_it_loses_nothing(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_backfill", str(tmp_path), "200"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert result["kills"] >= 200
    assert result["moments"] > 20, "the kills came at many points of the way"
    assert result["done"] == 300


def test_a_refresh_to_a_version_that_was_withdrawn_is_undone(lineage: Lineage) -> None:
    lineage.label("kept", 2)
    older, before = store_of_a_withdrawn_version(lineage)
    with pytest.raises(LineageError, match="version 3, which was withdrawn"):
        Reader(lineage, {"object": older})
    work = Backfill(lineage, older, "object")
    assert work.status().held == {2: 200, 3: 100}
    with pytest.raises(LineageError, match="withdrawn"):
        work.apply()
    # Rows of the withdrawn version come first; the object 5000 has no embedding in another one.
    source = DictionaryStore()
    fill(lineage, source, "object", 2)
    dim = older.spaces()[3].dim
    older.upsert(Rows(3, pa.array([5000]), np.ones((1, dim), np.float32)))
    errors = planned_rows(lineage, older, source, 2).vectors
    assert errors.tolist() == [[UNREAD]] * 100
    older.delete([5000])
    assert work.rollback().held == {2: 300}
    assert as_dict(older.scan()) == before
    assert len(Reader(lineage, {"object": older}).embed(range(300), 0).vectors) == 300


def test_a_backfill_to_a_version_of_before_touches_no_newer_row(
    lineage: Lineage, older: DictionaryStore
) -> None:
    planned(lineage, older).apply(rows=100)
    lineage.label("kept", 2)
    publish(lineage, 3)
    fill(lineage, older, "object")
    before = as_dict(older.scan())
    work = Backfill(lineage, older, "object")
    with pytest.raises(LineageError, match="leads to version 2, and version 3 is in production"):
        work.apply()
    assert as_dict(older.scan()) == before
    assert work.plan().target == 3, "another may be planned at once"


def test_a_rollback_that_was_killed_is_finished_before_anything_else(
    lineage: Lineage, older: DictionaryStore
) -> None:
    before = as_dict(older.scan())
    work = planned(lineage, older, 50)
    work.apply(rows=250)

    def killed(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.rollback(progress=killed)
    work = Backfill(lineage, older, "object")
    assert work.status().state == "rolling back"
    for step in (work.apply, work.plan):
        with pytest.raises(LineageError, match="finish it by 'rollback'"):
            step()
    assert work.rollback().state == "rolled back"
    assert as_dict(older.scan()) == before


@pytest.mark.parametrize("form", ["vec", "lance:vec#emb", "qdrant:vec#emb", "sqlite:vec.db#emb"])
def test_a_store_is_its_folder_however_it_is_called(
    lineage: Lineage, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders hold a store of one name; the plan of the one is not the other's."""

    def opened(folder: str, address: str) -> Path:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        with open_store(address, create="int64") as older:
            return Backfill(lineage, older, "object").folder

    first, other = opened("a", form), opened("b", form)
    assert first != other
    assert opened("b", form.replace("vec", "../a/vec")) == first
    assert opened("b", form.replace("vec", f"{tmp_path}/a/vec")) == first


def test_a_row_written_by_hand_after_a_kill_is_put_back(
    lineage: Lineage, older: DictionaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the old rows were kept and before the new ones were written."""
    work = planned(lineage, older, 300)

    def kill_apply() -> None:
        def killed(rows: Rows) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as during:
            during.setattr(older, "upsert", killed)
            with pytest.raises(KeyboardInterrupt):
                work.apply()

    kill_apply()
    older.upsert(written_by_hand(lineage, 1, 5, 3))
    before = as_dict(older.scan())
    kill_apply()
    kill_apply()
    assert work.apply().held == {1: 20, 2: 300}
    assert work.rollback().held == {1: 320}
    assert as_dict(older.scan()) == before


def test_old_rows_of_an_earlier_backfill_that_stay_refuse_the_next(
    lineage: Lineage, older: DictionaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback took them for its own, and put back rows of a version before."""
    work = planned(lineage, older)
    work.apply()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: None)
        with pytest.raises(LineageError, match="cannot be removed"):
            work.plan()
    # Files that cannot be deleted, but renamed, are in nobody's way.
    assert work.plan().rows == 0
    assert not (work.folder / "saved").exists()


def test_a_flipped_bit_in_old_rows_is_noticed_before_a_row_is_put_back(
    lineage: Lineage, older: DictionaryStore
) -> None:
    work = planned(lineage, older, 400)
    work.apply()
    after = as_dict(older.scan())
    path = max((work.folder / "saved/segments").iterdir(), key=lambda file: file.stat().st_size)
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    for at in draw.integers(0, len(whole), 30):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(draw.integers(8))
        path.write_bytes(flipped)
        with pytest.raises(IntegrityError):
            work.rollback()
        assert as_dict(older.scan()) == after


def test_rows_that_no_map_reads_come_first(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, source = DictionaryStore(), DictionaryStore()
    fill(lineage, source, "object", 2)
    for version, ids in ((1, range(4)), (0, range(4, 8))):
        older.add_space(space_of(lineage, version))
        for key in ids:
            older.upsert(written_by_hand(lineage, version, key, 1))
    forward = Lineage.forward
    monkeypatch.setattr(
        Lineage, "forward", lambda self, a, b: None if a == 0 else forward(self, a, b)
    )
    rows = planned_rows(lineage, older, source, 2)
    errors = dict(zip(rows.ids.to_pylist(), rows.vectors[:, 0].tolist(), strict=True))
    assert [key for key in errors if errors[key] == UNREAD] == [4, 5, 6, 7]
    assert max(errors[key] for key in range(4)) < UNREAD


def test_the_error_is_the_distance_from_the_new_vector(lineage: Lineage) -> None:
    """In float64, by the maps written out, forward and back."""
    for source, target in ((0, 1), (1, 0)):
        old, new = DictionaryStore(), DictionaryStore()
        for version, store in ((source, old), (target, new)):
            store.add_space(space := space_of(lineage, version))
            own, maps = vectors_of(version).numpy(), VersionMaps(lineage)
            store.upsert(stored_rows(maps, space, pa.array(range(300)), own))
        parts = lineage.forward(0, 1) if target else lineage.chain.affine(1, 0)
        assert parts is not None
        read = vectors_of(source).double() @ parts[0].T + parts[1]
        truth = (read - vectors_of(target)).norm(dim=1)
        # Some objects have no new vector.
        new.delete(list(range(50)))
        rows = planned_rows(lineage, old, new, target)
        ids = rows.ids.to_pylist()
        assert sorted(ids) == list(range(50, 300))
        np.testing.assert_allclose(rows.vectors[:, 0], truth[ids], rtol=1e-3, atol=1e-5)


# Stores that a kill may leave with an id in two tables.

BATCH = 64


def copied(folder: Path, rows: Store) -> Store:
    older = open_store(f"lance:{folder}#emb", create="int64")
    for space in rows.spaces().values():
        older.load(space, rows.scan(space.version))
    return older


def killed(work: Backfill, older: Any, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply until rows are removed for the n-th time, and not do it."""
    remove, calls = type(older)._remove, []

    def die(self: Store, version: int, *args: Any) -> None:
        calls.append(version)
        if len(calls) >= at:
            raise StoreError("killed")
        remove(self, version, *args)

    with monkeypatch.context() as during:
        during.setattr(type(older), "_remove", die)
        with pytest.raises(StoreError, match="killed"):
            work.apply()


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("command", ["after a plan", "apply", "the same"])
def test_a_store_that_was_left_with_ids_twice_is_repaired(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, at: int
) -> None:
    """By the same command; or by the next, where rows were left twice though it ended."""
    older = older_store(lineage)
    before = as_dict(older.scan())
    with closing(copied(tmp_path / "s", older)) as store:
        work = planned(lineage, store, BATCH)
        killed(work, store, at, monkeypatch)
        assert sum(store.count().values()) == 320 + BATCH
        if command != "the same":
            with monkeypatch.context() as earlier:
                earlier.setattr(TablePerVersionStore, "remove_superseded", lambda self: 0)
                assert work.apply().held == {1: 20 + BATCH, 2: 300}
        if command == "after a plan":
            assert work.plan().rows == 0
        assert work.apply().held == {1: 20, 2: 300}
        # As one that nothing interrupted.
        planned(lineage, older, BATCH).apply()
        assert as_dict(store.scan()) == as_dict(older.scan())
        if command != "after a plan":
            assert work.rollback().held == {1: 320}
            assert as_dict(store.scan()) == before


# Progress, read from the files alone.

RUN: dict[str, Any] = {
    **{"side": "candidate", "store": "s", "target": 3, "fingerprint": "f", "rows": 10, "batch": 2},
    **{"state": "under way", "done": 6, "at": 1000.0},
}
STATES: list[tuple[dict[str, Any], float, str]] = [
    *(({}, 1599.0, "under way"), ({}, 1601.0, "stalled"), ({"state": "paused"}, 9999.0, "paused")),
    ({"state": "applied"}, 9999.0, "applied"),
    # A clock that is behind proves nothing.
    ({}, 300.0, "stalled"),
]
DAMAGED: list[dict[str, Any]] = [
    *({"rows": "10"}, {"target": True}, {"done": None}, {"done": 1.5}),
    *({"at": float("nan")}, {"at": "long ago"}),
]


def test_progress_when_it_stalled_and_damage(tmp_path: Path) -> None:
    assert backfill_progress(tmp_path) == []

    def read(changes: dict[str, Any], now: float) -> Any:
        folder = tmp_path / "backfills" / "candidate-0a"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD).write_text(json.dumps({**RUN, **changes}))
        (found,) = backfill_progress(tmp_path, now)
        assert found.side == "candidate"
        return found

    found = read({}, 1010.0)
    assert (found.version, found.done, found.total, found.idle) == (3, 6, 10, 10.0)
    for changes, now, state in STATES:
        assert read(changes, now).state == state
    for damaged in DAMAGED:
        assert read(damaged, 1030.0).state == UNREADABLE
