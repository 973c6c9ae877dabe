"""Refreshing older rows: order, resumption, damage, and every row put back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.agreement import as_dict
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import publish, read_as, vectors_of
from tests.support.older_stores import older_store, store_of_a_withdrawn_version, vectors_by_id
from tests.support.store_kinds import STORES

from evergram.compatibility.certificate import StepError
from evergram.errors import IntegrityError, LineageError, StoreError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.backfilling.backfill_journal import write_table
from evergram.retrieval.backfilling.backfill_order import UNREADABLE as WORST
from evergram.retrieval.backfilling.backfill_order import backfill_order, predicted_errors
from evergram.retrieval.backfilling.backfill_progress import (
    UNREADABLE,
    BackfillProgress,
    backfill_progress,
)
from evergram.retrieval.fill import fill, space_of, stored_rows
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows, Space, Store
from evergram.stores.table_per_version import TablePerVersionStore

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


@pytest.mark.parametrize("fails", [1, 2, 5, 10])
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
    whole = json.loads((work.folder / "plan.json").read_text())
    facts: list[tuple[str, object]] = [
        ("plan.json", {"target": 2}),
        ("plan.json", {**whole, "target": True}),
        ("plan.json", {**whole, "absent": -1}),
        ("progress.json", {"state": "planned"}),
        ("progress.json", {"state": "planned", "done": -1}),
        ("progress.json", []),
    ]
    for name, damaged in facts:
        before = (work.folder / name).read_text()
        (work.folder / name).write_text(json.dumps(damaged))
        with pytest.raises(IntegrityError, match=name):
            work.apply()
        (work.folder / name).write_text(before)
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


def test_a_flipped_bit_in_a_journal_is_noticed_before_a_row_is_put_back(lineage: Lineage) -> None:
    store = older_store(lineage)
    before = vectors_by_id(store)
    work = Backfill(lineage, store, "object")
    work.plan(batch=400)
    work.apply()
    after = vectors_by_id(store)
    path = next((work.folder / "journal").glob("*.sealed"))
    whole = path.read_bytes()
    noticed = 0
    draw = np.random.default_rng(0)
    for at in draw.integers(0, len(whole), 50):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(draw.integers(8))
        path.write_bytes(flipped)
        try:
            work.rollback()
        except IntegrityError:
            noticed += 1
        for key, vector in vectors_by_id(store).items():
            assert any(np.array_equal(vector, known[key]) for known in (before, after))
    assert noticed == 50


def test_a_table_of_another_form_is_an_error(lineage: Lineage) -> None:
    work = Backfill(lineage, older_store(lineage), "object")
    work.plan()
    write_table(work.folder / "order.sealed", pa.table({"key": [1]}))
    with pytest.raises(IntegrityError, match=r"order\.sealed is no table of a backfill"):
        work.apply()
    content = b"no table of Arrow's"
    sealed = hashlib.sha256(content).digest() + content
    (work.folder / "order.sealed").write_bytes(sealed)
    with pytest.raises(IntegrityError, match=r"order\.sealed is no table of a backfill"):
        work.apply()


def test_the_largest_predicted_error_comes_first(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward map that loses the last two coordinates: rows that are long there are worst."""
    forward = torch.eye(10, 8, dtype=torch.float64)
    forward[6:] = 0
    offset = torch.zeros(10, dtype=torch.float64)
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: (forward, offset))
    store = older_store(lineage)
    work = Backfill(lineage, store, "object")
    work.plan(batch=50)
    work.apply(rows=50)
    first = {i for rows in store.scan(2) for i in rows.ids.to_pylist()}
    vectors = vectors_of(1).numpy()
    back = np.array([*vectors.T[:6] * 2 / 3 + 0.2, np.full(300, 0.2), np.full(300, 0.2)]).T
    lost = np.linalg.norm(back - vectors, axis=1)
    assert first == set(np.argsort(-lost)[:50].tolist())


def test_rows_come_worst_first_and_those_of_a_withdrawn_version_before_all(
    lineage: Lineage,
) -> None:
    lineage.label("kept", 2)
    store, _ = store_of_a_withdrawn_version(lineage)
    source = DictionaryStore()
    fill(lineage, source, "object", 2)
    # 200 rows are of version 2 already; the object 5000 has no embedding in it.
    space = store.spaces()[3]
    store.upsert(Rows(3, pa.array([5000]), np.ones((1, space.dim), np.float32)))
    order = backfill_order(lineage, store, source, 2)
    assert len(order.ids) == 100
    assert order.errors.tolist() == [WORST] * 100
    assert order.without == 1


def test_without_a_forward_map_the_oldest_rows_come_first(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: None)
    store, source = DictionaryStore(), DictionaryStore()
    fill(lineage, source, "object", 2)
    for version, ids in ((1, range(4)), (0, range(4, 8))):
        space = space_of(lineage, version)
        store.add_space(space)
        vectors = vectors_of(version).numpy()[:4]
        rows = stored_rows(lineage, VersionMaps(lineage), space, pa.array(ids), vectors)
        store.upsert(rows)
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


BATCH = 64


def filled(kind: str, folder: Path, lineage: Lineage) -> Store:
    """The same rows as those of `older_store`."""
    folder.mkdir()
    store, rows = STORES[kind](folder, "int64"), older_store(lineage)
    for space in rows.spaces().values():
        store.load(space, rows.scan(space.version))
    return store


def killed(work: Backfill, store: Store, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply until rows are removed for the n-th time, and not do it."""
    remove, calls = type(store)._remove, []  # type: ignore[attr-defined]

    def die(self: Store, version: int, *args: Any) -> None:
        calls.append(version)
        if len(calls) >= at:
            raise StoreError("killed")
        remove(self, version, *args)

    with monkeypatch.context() as during:
        during.setattr(type(store), "_remove", die)
        with pytest.raises(StoreError, match="killed"):
            work.apply()


def finished(lineage: Lineage) -> dict[Any, Any]:
    """The rows of a store whose backfill nothing interrupted."""
    store = older_store(lineage)
    Backfill(lineage, store, "object").plan(BATCH)
    Backfill(lineage, store, "object").apply()
    return as_dict(store.scan())


def searches(lineage: Lineage, store: Store) -> list[Any]:
    """What a reader returns at two versions; of rows that tie for the last place, scores alone."""
    reader = Reader(lineage, {"object": store})
    hits = [
        one
        for version in (0, 2)
        for metric in ("ip", "l2", "cosine")
        for one in reader.search(vectors_of(version).numpy()[:20], 7, version, metric=metric)
    ]
    above = [one.scores > one.scores[-1] + 1e-5 for one in hits]
    return [
        (
            dict(zip(one.ids.filter(pa.array(mask)).to_pylist(), one.versions[mask], strict=True)),
            one.scores.tolist(),
        )
        for one, mask in zip(hits, above, strict=True)
    ]


@pytest.mark.parametrize(("kind", "at"), [("lance", 1), ("qdrant", 3)])
def test_the_same_command_ends_with_each_id_once(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, at: int
) -> None:
    store, oracle = filled(kind, tmp_path / "s", lineage), older_store(lineage)
    work = Backfill(lineage, store, "object")
    work.plan(BATCH)
    killed(work, store, at, monkeypatch)
    assert sum(store.count().values()) == 320 + BATCH
    # Meanwhile the store is read as one whose last batch is written.
    now = as_dict(store.scan())
    for version in (1, 2):
        chosen = [key for key, (of, _) in now.items() if of == version]
        for rows in store.fetch(chosen):
            oracle.add_space(store.spaces()[version])
            oracle.upsert(Rows(version, rows.ids, rows.vectors))
    assert oracle.count() == {1: 320 - at * BATCH, 2: at * BATCH}
    for (rows, scores), (right_rows, right) in zip(
        searches(lineage, store), searches(lineage, oracle), strict=True
    ):
        assert rows == right_rows
        assert scores == pytest.approx(right, rel=1e-5, abs=1e-5)
    assert work.apply().held == {1: 20, 2: 300}
    assert as_dict(store.scan()) == finished(lineage)
    assert work.plan().absent == 0
    store.close()


@pytest.mark.parametrize(("kind", "command"), [("lance", "plan"), ("lance", "apply")])
def test_a_store_that_was_left_with_ids_twice_is_repaired(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, command: str
) -> None:
    store = filled(kind, tmp_path / "s", lineage)
    before = as_dict(store.scan())
    work = Backfill(lineage, store, "object")
    work.plan(BATCH)
    killed(work, store, 2, monkeypatch)
    with monkeypatch.context() as earlier:
        earlier.setattr(TablePerVersionStore, "remove_superseded", lambda self: 0)
        assert work.apply().held == {1: 20 + BATCH, 2: 300}
    status = getattr(work, command)()
    assert (status.held, status.without) == ({1: 20, 2: 300}, 20)
    assert status.absent == 0
    assert as_dict(store.scan()) == finished(lineage)
    if command == "apply":
        assert work.rollback().held == {1: 320}
        assert as_dict(store.scan()) == before
    store.close()


PLAN = {"side": "candidate", "target": 3, "rows": 10}


def write(lineage: Path, name: str, plan: Any, progress: Any) -> Path:
    folder = lineage / "backfills" / name
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "progress.json").write_text(json.dumps(progress))
    return folder


def test_each_backfill_is_read_with_its_progress(tmp_path: Path) -> None:
    assert backfill_progress(tmp_path) == []
    write(tmp_path, "candidate-0a", PLAN, {"state": "under way", "done": 4, "at": 990.0})
    query = {"state": "applied", "done": 10, "at": 900.0}
    write(tmp_path, "query-0b", {**PLAN, "side": "query"}, query)
    assert backfill_progress(tmp_path, 1000.0) == [
        BackfillProgress("candidate", 3, 4, 10, "under way", None, 10.0),
        BackfillProgress("query", 3, 10, 10, "applied", None, 100.0),
    ]


# A run that did 4 rows in 20 seconds, in batches of 2: ten seconds each.
RUN = {"state": "under way", "done": 6, "from": 2, "since": 1000.0, "at": 1020.0}


@pytest.mark.parametrize(
    ("plan", "progress", "now", "state", "rate", "left"),
    [
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
    ],
)
def test_the_rate_the_time_left_and_when_it_stalled(
    tmp_path: Path,
    plan: dict[str, Any],
    progress: dict[str, Any],
    now: float,
    state: str,
    rate: float | None,
    left: float | None,
) -> None:
    write(tmp_path, "candidate-0a", {**PLAN, "batch": 2, **plan}, {**RUN, **progress})
    (found,) = backfill_progress(tmp_path, now)
    assert (found.state, found.rate, found.left) == (state, rate, left)


def test_a_plan_that_is_still_being_made_is_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path, "candidate-0a", PLAN, {"state": "planned", "done": 0})
    (folder / "plan.json").unlink()
    assert backfill_progress(tmp_path) == []


@pytest.mark.parametrize(
    ("plan", "progress"),
    [
        ([], {"state": "planned", "done": 0}),
        ({**PLAN, "rows": "10"}, {"state": "planned", "done": 0}),
        ({**PLAN, "target": True}, {"state": "planned", "done": 0}),
        (PLAN, {"state": "planned"}),
        (PLAN, {"state": "planned", "done": 1.5}),
        (PLAN, {**RUN, "at": float("nan")}),
        (PLAN, {**RUN, "since": "long ago"}),
    ],
)
def test_damaged_files_are_said_in_the_state(tmp_path: Path, plan: Any, progress: Any) -> None:
    write(tmp_path, "sub-side-0a", plan, progress)
    assert backfill_progress(tmp_path) == [BackfillProgress("sub-side", 0, 0, 0, UNREADABLE)]
