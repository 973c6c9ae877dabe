"""Refreshing older rows: order, resumption, damage, and every row put back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.agreement import as_dict
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import publish, read_as, vectors_of
from tests.support.older_stores import older_store, store_of_a_withdrawn_version

from evergram.compatibility.certificate import StepError
from evergram.errors import IntegrityError, LineageError, StoreError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.backfilling.backfill_order import UNREADABLE as WORST
from evergram.retrieval.backfilling.backfill_order import backfill_order, predicted_errors
from evergram.retrieval.backfilling.backfill_progress import UNREADABLE, backfill_progress
from evergram.retrieval.fill import fill, space_of, stored_rows
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows, Space, Store
from evergram.stores.table_per_version import TablePerVersionStore

pytestmark = pytest.mark.usefixtures("backfill_in_memory")


@pytest.fixture
def store(lineage: Lineage) -> DictionaryStore:
    return older_store(lineage)


def planned(lineage: Lineage, store: Store, batch: int = 64) -> Backfill:
    work = Backfill(lineage, store, "object")
    work.plan(batch)
    return work


def written_by_hand(lineage: Lineage, version: int, key: int, value: float) -> Rows:
    space = space_of(lineage, version)
    dim = lineage.manifest(version).dim
    vectors = np.full((1, dim), value, np.float32)
    return stored_rows(lineage, VersionMaps(lineage), space, pa.array([key]), vectors)


def test_plan_apply_and_status(lineage: Lineage, store: DictionaryStore) -> None:
    work = Backfill(lineage, store, "object")
    with pytest.raises(LineageError, match="backfill plan"):
        work.status()
    store.delete(range(5))  # objects without a row, which are counted and not added
    plan = work.plan(batch=64)
    assert (plan.state, plan.rows, plan.remaining) == ("planned", 295, 1.0)
    assert (plan.without, plan.absent) == (20, 5)
    part = work.apply(rows=100)
    # A whole batch and a part of one.
    assert (part.state, part.refreshed, part.held) == ("under way", 100, {1: 215, 2: 100})
    assert 0 < part.remaining < 1
    with pytest.raises(LineageError, match="under way"):
        work.plan()
    # Half way, every row is still what its version reads.
    embedded = Reader(lineage, {"object": store}).embed(range(300), 0)
    for version in (1, 2):
        mine = embedded.sources == version
        truth = read_as(version, 0).numpy()[mine]
        np.testing.assert_allclose(embedded.vectors[mine], truth, rtol=1e-5, atol=1e-6)
    done = Backfill(lineage, store, "object").apply()
    assert (done.state, done.refreshed, done.remaining) == ("applied", 295, 0.0)
    assert done.held == {1: 20, 2: 295}
    assert Backfill(lineage, store, "object").apply() == done


def test_a_rollback_puts_back_all_rows_but_those_written_since(
    lineage: Lineage, store: DictionaryStore
) -> None:
    before = as_dict(store.scan())
    work = planned(lineage, store)
    work.apply(rows=200)
    added = next(i for rows in store.scan(2) for i in rows.ids.to_pylist())
    store.upsert(written_by_hand(lineage, 2, added, 7))
    before[added] = as_dict(store.fetch([added]))[added]
    back = work.rollback()
    assert (back.state, back.held) == ("rolled back", {1: 319, 2: 1})
    assert as_dict(store.scan()) == before
    with pytest.raises(LineageError, match="rolled back"):
        work.apply()
    assert work.plan().rows == 299


@pytest.mark.parametrize("fails", [1, 2, 5])
def test_a_store_that_fails_at_any_write_loses_nothing(
    lineage: Lineage, store: DictionaryStore, fails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes away at the n-th write, before or after it has written, and comes back."""
    before = as_dict(store.scan())
    work = planned(lineage, store)
    write = store._write
    for step in (work.apply, work.rollback):
        calls: list[int] = []

        def failing(rows: Rows, checks: np.ndarray, calls: list[int] = calls) -> None:
            calls.append(1)
            if len(calls) != fails or not fails % 2:
                write(rows, checks)
            if len(calls) == fails:
                raise StoreError("the database went away")

        with monkeypatch.context() as during:
            during.setattr(store, "_write", failing)
            with pytest.raises(StoreError):
                step()
        step()
        assert store.count() == ({1: 20, 2: 300} if step == work.apply else {1: 320})
    assert as_dict(store.scan()) == before


def test_a_backfill_of_another_lineage_or_with_damaged_files_is_refused(
    lineage: Lineage, store: DictionaryStore
) -> None:
    other = DictionaryStore()
    other.add_space(Space(1, 8, "sha256:other"))
    other.upsert(Rows(1, pa.array([1]), np.ones((1, 8), np.float32)))
    with pytest.raises(IntegrityError, match="another lineage"):
        Backfill(lineage, other, "object")
    work = planned(lineage, store)
    work.apply(rows=1)
    whole = json.loads((work.folder / "plan.json").read_text())
    table = b"no table of Arrow's"
    for name, damaged in (
        *(("plan.json", {**whole, **one}) for one in ({"target": True}, {"absent": -1})),
        *(("plan.json", {"target": 2}), ("progress.json", {"state": "planned"})),
        *(("progress.json", []), ("progress.json", {"state": "planned", "done": -1})),
        ("order.sealed", hashlib.sha256(table).digest() + table),
    ):
        before = (work.folder / name).read_bytes()
        content = damaged if isinstance(damaged, bytes) else json.dumps(damaged).encode()
        (work.folder / name).write_bytes(content)
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
    store, before = store_of_a_withdrawn_version(lineage)
    with pytest.raises(LineageError, match="version 3, which was withdrawn"):
        Reader(lineage, {"object": store})
    work = Backfill(lineage, store, "object")
    assert work.status().held == {2: 200, 3: 100}
    with pytest.raises(LineageError, match="withdrawn"):
        work.apply()
    # Rows of the withdrawn version come first; the object 5000 has no embedding in another one.
    source = DictionaryStore()
    fill(lineage, source, "object", 2)
    dim = store.spaces()[3].dim
    store.upsert(Rows(3, pa.array([5000]), np.ones((1, dim), np.float32)))
    order = backfill_order(lineage, store, source, 2)
    assert (order.errors.tolist(), order.without) == ([WORST] * 100, 1)
    store.delete([5000])
    assert work.rollback().held == {2: 300}
    assert as_dict(store.scan()) == before
    assert len(Reader(lineage, {"object": store}).embed(range(300), 0).vectors) == 300


def test_a_backfill_to_a_version_of_before_touches_no_newer_row(
    lineage: Lineage, store: DictionaryStore
) -> None:
    planned(lineage, store).apply(rows=100)
    lineage.label("kept", 2)
    publish(lineage, 3)
    fill(lineage, store, "object")
    before = as_dict(store.scan())
    work = Backfill(lineage, store, "object")
    with pytest.raises(LineageError, match="leads to version 2, and version 3 is in production"):
        work.apply()
    assert as_dict(store.scan()) == before
    assert work.plan().target == 3, "another may be planned at once"


def test_a_rollback_that_was_killed_is_finished_before_anything_else(
    lineage: Lineage, store: DictionaryStore
) -> None:
    before = as_dict(store.scan())
    work = planned(lineage, store, 50)
    work.apply(rows=250)

    def killed(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.rollback(progress=killed)
    work = Backfill(lineage, store, "object")
    assert work.status().state == "rolling back"
    for step in (work.apply, work.plan):
        with pytest.raises(LineageError, match="finish it by 'rollback'"):
            step()
    assert work.rollback().state == "rolled back"
    assert as_dict(store.scan()) == before


@pytest.mark.parametrize("form", ["vec", "lance:vec#emb", "qdrant:vec#emb", "sqlite:vec.db#emb"])
def test_a_store_is_its_folder_however_it_is_called(
    lineage: Lineage, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders hold a store of one name; the plan of the one is not the other's."""

    def opened(folder: str, address: str) -> Path:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        with open_store(address, create="int64") as store:
            return Backfill(lineage, store, "object").folder

    first, other = opened("a", form), opened("b", form)
    assert first != other
    assert opened("b", form.replace("vec", "../a/vec")) == first
    assert opened("b", form.replace("vec", f"{tmp_path}/a/vec")) == first


def test_a_row_written_by_hand_after_a_kill_is_put_back(
    lineage: Lineage, store: DictionaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the old rows were kept and before the new ones were written."""
    work = planned(lineage, store, 300)

    def kill_apply() -> None:
        def killed(rows: Rows) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as during:
            during.setattr(store, "upsert", killed)
            with pytest.raises(KeyboardInterrupt):
                work.apply()

    kill_apply()
    store.upsert(written_by_hand(lineage, 1, 5, 3))
    before = as_dict(store.scan())
    kill_apply()
    kill_apply()
    assert len(list((work.folder / "journal").iterdir())) == 2, "what is known is not kept again"
    assert work.apply().held == {1: 20, 2: 300}
    assert work.rollback().held == {1: 320}
    assert as_dict(store.scan()) == before


def test_old_rows_of_an_earlier_backfill_that_stay_refuse_the_next(
    lineage: Lineage, store: DictionaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback took them for its own, and put back rows of a version before."""
    work = planned(lineage, store)
    work.apply()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: None)
        with pytest.raises(LineageError, match="cannot be removed"):
            work.plan()
    # Files that cannot be deleted, but renamed, are in nobody's way.
    assert work.plan().rows == 0
    assert not list((work.folder / "journal").iterdir())


def test_a_flipped_bit_in_a_journal_is_noticed_before_a_row_is_put_back(
    lineage: Lineage, store: DictionaryStore
) -> None:
    work = planned(lineage, store, 400)
    work.apply()
    after = as_dict(store.scan())
    path = next((work.folder / "journal").glob("*.sealed"))
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    for at in draw.integers(0, len(whole), 30):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(draw.integers(8))
        path.write_bytes(flipped)
        with pytest.raises(IntegrityError):
            work.rollback()
        assert as_dict(store.scan()) == after


def test_the_largest_predicted_error_comes_first(
    lineage: Lineage, store: DictionaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward map that loses the last two coordinates: rows that are long there are worst."""
    forward = torch.eye(10, 8, dtype=torch.float64)
    forward[6:] = 0
    offset = torch.zeros(10, dtype=torch.float64)
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: (forward, offset))
    planned(lineage, store, 50).apply(rows=50)
    first = {i for rows in store.scan(2) for i in rows.ids.to_pylist()}
    vectors = vectors_of(1).numpy()
    back = np.hstack([vectors[:, :6] * 2 / 3 + 0.2, np.full((300, 2), 0.2)])
    lost = np.linalg.norm(back - vectors, axis=1)
    assert first == set(np.argsort(-lost)[:50].tolist())


def test_without_a_forward_map_the_oldest_rows_come_first(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: None)
    store, source = DictionaryStore(), DictionaryStore()
    fill(lineage, source, "object", 2)
    for version, ids in ((1, range(4)), (0, range(4, 8))):
        store.add_space(space_of(lineage, version))
        for key in ids:
            store.upsert(written_by_hand(lineage, version, key, 1))
    order = backfill_order(lineage, store, source, 2)
    # No version has a certificate here, so the error is the number of versions between.
    assert order.ids.to_pylist() == [4, 5, 6, 7, 0, 1, 2, 3]
    assert order.errors.tolist() == [2.0] * 4 + [1.0] * 4


def test_the_predicted_error_is_lost_forward_and_back_with_the_certificates(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, by the two maps written out."""
    forward = torch.eye(8, 6, dtype=torch.float64) * 3
    monkeypatch.setattr(
        Lineage, "forward", lambda self, source, target: (forward, torch.ones(8).double())
    )
    errors = {1: StepError(torch.eye(6).double() * 0.5, 300, 1.0)}
    monkeypatch.setattr(Lineage, "step_errors", errors)
    vectors = vectors_of(0)
    predicted = predicted_errors(lineage, VersionMaps(lineage), vectors.numpy(), 0, 1)
    weight, offset = lineage.chain.affine(1, 0)
    back = (vectors.double() @ forward.T + 1) @ weight.T + offset
    truth = ((back - vectors).square().sum(1) + 6 * 0.5).sqrt()
    np.testing.assert_allclose(predicted, truth.numpy(), rtol=1e-5)


# Stores that a kill may leave with an id in two tables.

BATCH = 64


def filled(folder: Path, rows: Store) -> Store:
    store = open_store(f"lance:{folder}#emb", create="int64")
    for space in rows.spaces().values():
        store.load(space, rows.scan(space.version))
    return store


def killed(work: Backfill, store: Any, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply until rows are removed for the n-th time, and not do it."""
    remove, calls = type(store)._remove, []

    def die(self: Store, version: int, *args: Any) -> None:
        calls.append(version)
        if len(calls) >= at:
            raise StoreError("killed")
        remove(self, version, *args)

    with monkeypatch.context() as during:
        during.setattr(type(store), "_remove", die)
        with pytest.raises(StoreError, match="killed"):
            work.apply()


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("command", ["plan", "apply", "the same"])
def test_a_store_that_was_left_with_ids_twice_is_repaired(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, at: int
) -> None:
    """By the same command; or by the next, where rows were left twice though it ended."""
    older = older_store(lineage)
    before = as_dict(older.scan())
    with closing(filled(tmp_path / "s", older)) as store:
        work = planned(lineage, store, BATCH)
        killed(work, store, at, monkeypatch)
        assert sum(store.count().values()) == 320 + BATCH
        if command != "the same":
            with monkeypatch.context() as earlier:
                earlier.setattr(TablePerVersionStore, "remove_superseded", lambda self: 0)
                assert work.apply().held == {1: 20 + BATCH, 2: 300}
        status = work.plan() if command == "plan" else work.apply()
        assert (status.held, status.without, status.absent) == ({1: 20, 2: 300}, 20, 0)
        # As one that nothing interrupted.
        planned(lineage, older, BATCH).apply()
        assert as_dict(store.scan()) == as_dict(older.scan())
        if command != "plan":
            assert work.rollback().held == {1: 320}
            assert as_dict(store.scan()) == before


# Progress, read from the files alone.

PLAN = {"side": "candidate", "target": 3, "rows": 10}
# A run that did 4 rows in 20 seconds, in batches of 2: ten seconds each.
RUN = {"state": "under way", "done": 6, "from": 2, "since": 1000.0, "at": 1020.0}


RATES: list[tuple[dict[str, Any], dict[str, Any], float, str, float | None, float | None]] = [
    ({}, {}, 1030.0, "under way", 0.2, 20.0),
    ({}, {}, 1080.0, "under way", 0.2, 20.0),
    ({}, {}, 1081.0, "stalled", 0.2, None),
    # Five batches of twenty seconds each: it may take longer.
    ({"batch": 4}, {}, 1119.0, "under way", 0.2, 20.0),
    ({"batch": 4}, {}, 1121.0, "stalled", 0.2, None),
    ({}, {"paused": True}, 9999.0, "paused", 0.2, None),
    ({}, {"done": 2}, 1030.0, "under way", None, None),
    ({}, {"state": "applied"}, 9999.0, "applied", 0.2, None),
    # A clock that is behind proves nothing.
    ({}, {}, 900.0, "stalled", 0.2, None),
]
DAMAGED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"rows": "10"}, {}), ({"target": True}, {}), ({}, {"done": None}), ({}, {"done": 1.5})),
    *(({}, {"at": float("nan")}), ({}, {"since": "long ago"})),
]


def test_progress_the_rate_the_time_left_when_it_stalled_and_damage(tmp_path: Path) -> None:
    assert backfill_progress(tmp_path) == []

    def read(plan: dict[str, Any], progress: dict[str, Any], now: float) -> Any:
        folder = tmp_path / "backfills" / "candidate-0a"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(json.dumps({**PLAN, "batch": 2, **plan}))
        (folder / "progress.json").write_text(json.dumps({**RUN, **progress}))
        (found,) = backfill_progress(tmp_path, now)
        assert found.side == "candidate"
        return found

    found = read({}, {}, 1030.0)
    assert (found.version, found.done, found.total, found.idle) == (3, 6, 10, 10.0)
    for plan, progress, now, state, rate, left in RATES:
        found = read(plan, progress, now)
        assert (found.state, found.rate, found.left) == (state, rate, left)
    for damaged, progress in DAMAGED:
        assert read(damaged, progress, 1030.0).state == UNREADABLE
    # A plan that is still being made is left out.
    (tmp_path / "backfills" / "candidate-0a" / "plan.json").unlink()
    assert backfill_progress(tmp_path) == []
