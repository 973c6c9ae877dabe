"""Refreshing older rows: order, resumption, and every row put back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import publish, read_as
from tests.support.older_stores import older_store, store_of_a_withdrawn_version, vectors_by_id

from evergram.errors import IntegrityError, LineageError, StoreError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.fill import fill, space_of, stored_rows
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows, Space, Store

pytestmark = pytest.mark.usefixtures("backfill_in_memory")


def test_plan_apply_and_status(lineage: Lineage) -> None:
    store = older_store(lineage)
    work = Backfill(lineage, store, "object")
    planned = work.plan(batch=64)
    assert (planned.state, planned.rows, planned.without) == ("planned", 300, 20)
    assert planned.remaining == 1.0
    part = work.apply(rows=100)
    assert part.state == "under way"
    assert part.refreshed == 100, "a whole batch and a part of one"
    assert part.held == {1: 220, 2: 100}
    assert 0 < part.remaining < 1
    # Half way, every row is still what its version reads.
    reader = Reader(lineage, {"object": store})
    embedded = reader.embed(range(300), 0)
    for version in (1, 2):
        of_version = embedded.sources == version
        np.testing.assert_allclose(
            embedded.vectors[of_version],
            read_as(version, 0).numpy()[of_version],
            rtol=1e-5,
            atol=1e-6,
        )
    done = Backfill(lineage, store, "object").apply()
    assert (done.state, done.refreshed, done.remaining) == ("applied", 300, 0.0)
    assert done.held == {1: 20, 2: 300}
    again = Backfill(lineage, store, "object").apply()
    assert again == done


def test_objects_without_a_row_are_counted_and_not_added(lineage: Lineage) -> None:
    store = older_store(lineage)
    store.delete(pa.array(range(5)))
    work = Backfill(lineage, store, "object")
    planned = work.plan(batch=50)
    assert (planned.rows, planned.without, planned.absent) == (295, 20, 5)
    work.apply(rows=50)
    work.rollback()
    assert store.count() == {1: 315}


def test_rows_of_the_version_itself_are_not_counted_as_absent(lineage: Lineage) -> None:
    store = older_store(lineage)
    store.delete(pa.array(range(5)))
    work = Backfill(lineage, store, "object")
    work.plan(batch=50)
    work.apply(rows=50)
    # The object 5000 is a row of version 2 that the lineage did not publish.
    width = store.spaces()[2].dim
    store.upsert(Rows(2, pa.array([5000]), np.ones((1, width), np.float32)))
    work.apply()
    assert store.count() == {1: 20, 2: 296}
    assert work.plan().absent == 5


def test_a_rollback_puts_back_all_rows_but_those_written_since(lineage: Lineage) -> None:
    store = older_store(lineage)
    before = vectors_by_id(store)
    work = Backfill(lineage, store, "object")
    work.plan(batch=64)
    work.apply(rows=200)
    own = space_of(lineage, 2)
    fresh = np.full((1, 10), 7, np.float32)
    added = next(i for rows in store.scan(2) for i in rows.ids.to_pylist())
    store.upsert(stored_rows(lineage, VersionMaps(lineage), own, pa.array([added]), fresh))
    back = work.rollback()
    assert back.state == "rolled back"
    assert back.held == {1: 319, 2: 1}
    after = vectors_by_id(store)
    np.testing.assert_array_equal(after.pop(added)[:10], fresh[0])
    before.pop(added)
    assert after.keys() == before.keys()
    assert all((after[i] == before[i]).all() for i in after)
    with pytest.raises(LineageError, match="rolled back"):
        work.apply()
    assert work.plan().rows == 299


@pytest.mark.parametrize("fails", range(1, 12))
def test_a_store_that_fails_at_any_write_loses_nothing(lineage: Lineage, fails: int) -> None:
    """It goes away at the n-th write, and comes back."""
    store = older_store(lineage)
    before = vectors_by_id(store)
    work = Backfill(lineage, store, "object")
    work.plan(batch=64)
    with Failing(store, fails) as calls:
        try:
            work.apply()
        except StoreError:
            assert calls() == fails
    assert work.apply().held == {1: 20, 2: 300}
    with Failing(store, fails):
        try:
            work.rollback()
        except StoreError:
            work.status()
    work.rollback()
    after = vectors_by_id(store)
    assert all((after[i] == before[i]).all() for i in before)


class Failing:
    """Every second write that fails has been written before it was known to have failed."""

    def __init__(self, store: Store, at: int) -> None:
        self._store, self._at, self._calls = store, at, 0

    def __enter__(self) -> Callable[[], int]:
        write = type(self._store)._write

        def failing(rows: Rows, checks: np.ndarray) -> None:
            self._calls += 1
            if self._calls == self._at and self._at % 2:
                raise StoreError("the database went away")
            write(self._store, rows, checks)
            if self._calls == self._at:
                raise StoreError("the database went away after it had written")

        self._store._write = failing  # type: ignore[method-assign]
        return lambda: self._calls

    def __exit__(self, *_: object) -> None:
        del self._store._write


def test_a_backfill_that_cannot_be_done_says_why(lineage: Lineage) -> None:
    store = older_store(lineage)
    work = Backfill(lineage, store, "object")
    with pytest.raises(LineageError, match="backfill plan"):
        work.status()
    work.plan(batch=64)
    work.apply(rows=1)
    with pytest.raises(LineageError, match="under way"):
        work.plan()
    other = DictionaryStore()
    other.add_space(Space(1, 8, "sha256:other"))
    other.upsert(Rows(1, pa.array([1]), np.ones((1, 8), np.float32)))
    with pytest.raises(IntegrityError, match="another lineage"):
        Backfill(lineage, other, "object")
    (work.folder / "progress.json").write_text("{")
    with pytest.raises(IntegrityError, match="plan again"):
        work.apply()


@pytest.mark.long
def test_killed_two_hundred_times_it_loses_nothing(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_backfill", str(tmp_path), "200"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[3],
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
    store, before = store_of_a_withdrawn_version(lineage)
    with pytest.raises(LineageError, match=r"holds rows of version 3, which was withdrawn: put"):
        Reader(lineage, {"object": store})
    work = Backfill(lineage, store, "object")
    assert work.status().held == {2: 200, 3: 100}
    with pytest.raises(LineageError, match="withdrawn"):
        work.apply()
    assert work.rollback().held == {2: 300}
    after = vectors_by_id(store)
    assert after.keys() == before.keys()
    for key, vector in after.items():
        np.testing.assert_array_equal(vector, before[key])
    assert len(Reader(lineage, {"object": store}).embed(range(300), 0).vectors) == 300


def test_a_backfill_to_a_version_of_before_touches_no_newer_row(lineage: Lineage) -> None:
    store = older_store(lineage)
    work = Backfill(lineage, store, "object")
    work.plan(batch=64)
    work.apply(rows=100)
    lineage.label("kept", 2)
    publish(lineage, 3)
    fill(lineage, store, "object")
    before = vectors_by_id(store)
    work = Backfill(lineage, store, "object")
    with pytest.raises(LineageError, match="leads to version 2, and version 3 is in production"):
        work.apply()
    after = vectors_by_id(store)
    assert all((after[i] == before[i]).all() for i in before)
    assert work.plan().target == 3, "another may be planned at once"


def test_a_rollback_that_was_killed_is_finished_before_anything_else(lineage: Lineage) -> None:
    store = older_store(lineage)
    before = vectors_by_id(store)
    work = Backfill(lineage, store, "object")
    work.plan(batch=50)
    work.apply(rows=250)

    def killed(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.rollback(progress=killed)
    work = Backfill(lineage, store, "object")
    assert work.status().state == "rolling back"
    for step in (work.apply, work.plan):
        with pytest.raises(LineageError, match="was interrupted; finish it by 'rollback'"):
            step()
    assert work.rollback().state == "rolled back"
    after = vectors_by_id(store)
    assert after.keys() == before.keys()
    assert all((after[i] == before[i]).all() for i in before)


@pytest.mark.parametrize("form", ["vec", "lance:vec#emb", "qdrant:vec#emb", "sqlite:vec.db#emb"])
def test_a_store_is_its_folder_however_it_is_called(
    lineage: Lineage, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders hold a store of one name; the plan of the one is not the other's."""

    def opened(folder: str, address: str) -> Path:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        store = open_store(address, create="int64")
        with store:
            return Backfill(lineage, store, "object").folder

    first, other = opened("a", form), opened("b", form)
    assert first != other
    assert opened("b", form.replace("vec", "../a/vec")) == first
    assert opened("b", form.replace("vec", f"{tmp_path}/a/vec")) == first


def test_a_row_written_by_hand_after_a_kill_is_put_back(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the old rows were kept and before the new ones were written."""
    store = older_store(lineage)
    work = Backfill(lineage, store, "object")
    work.plan(batch=300)

    def killed(rows: Rows) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(store, "upsert", killed)
        with pytest.raises(KeyboardInterrupt):
            work.apply()
    space = space_of(lineage, 1)
    by_hand = stored_rows(
        lineage, VersionMaps(lineage), space, pa.array([5]), np.full((1, 8), 3, np.float32)
    )
    store.upsert(by_hand)
    before = vectors_by_id(store)
    for _ in range(2):
        with monkeypatch.context() as during:
            during.setattr(store, "upsert", killed)
            with pytest.raises(KeyboardInterrupt):
                work.apply()
    assert len(list((work.folder / "journal").iterdir())) == 2, "what is known is not kept again"
    assert work.apply().held == {1: 20, 2: 300}
    assert work.rollback().held == {1: 320}
    for key, vector in vectors_by_id(store).items():
        np.testing.assert_array_equal(vector, before[key])


def test_old_rows_of_an_earlier_backfill_that_stay_refuse_the_next(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback took them for its own, and put back rows of a version before."""
    store = older_store(lineage)
    work = Backfill(lineage, store, "object")
    work.plan(batch=64)
    work.apply()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(Path, "rename", lambda *_: None)
        with pytest.raises(LineageError, match="of an earlier backfill, cannot be removed"):
            work.plan()
    # Files that cannot be deleted, but renamed, are in nobody's way.
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        assert work.plan().rows == 0
    assert not list((work.folder / "journal").iterdir())
