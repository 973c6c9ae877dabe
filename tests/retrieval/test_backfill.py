"""Refreshing older rows: order, resumption, and every row put back."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import lineage_of, publish, read_as, vectors_of

from evergram.errors import DataError, IntegrityError, LineageError, StoreError
from evergram.lineage.lineage import Lineage
from evergram.retrieval import backfill as module
from evergram.retrieval.backfill import Backfill
from evergram.retrieval.backfill_journal import write_table
from evergram.retrieval.fill import fill, space_of, stored_rows
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows, Space, Store


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line")


def older(lineage: Lineage, rows: int = 300) -> DictionaryStore:
    """A store as it was when version 1 was the newest, and 20 objects that were added by hand."""
    store = DictionaryStore()
    space = space_of(lineage, 1)
    store.add_space(space)
    ids = pa.array([*range(rows), *range(1000, 1020)])
    vectors = np.concatenate([vectors_of(1).numpy()[:rows], np.ones((20, 8), np.float32)])
    store.upsert(stored_rows(lineage, VersionMaps(lineage), space, ids, vectors))
    return store


def test_plan_apply_and_status(lineage: Lineage) -> None:
    store = older(lineage)
    work = Backfill(lineage, store, "object")
    planned = work.plan(batch=64)
    assert (planned.state, planned.rows, planned.without) == ("planned", 300, 20)
    assert planned.remaining == 1.0
    part = work.apply(rows=100)
    assert part.state == "under way"
    assert part.refreshed == 128, "whole batches"
    assert part.held == {1: 192, 2: 128}
    assert 0 < part.remaining < 1
    # Half way, every row is still what its version reads.
    reader = Reader(lineage, {"object": store})
    found = reader.embed(range(300), 0)
    for version in (1, 2):
        mine = found.sources == version
        np.testing.assert_allclose(
            found.vectors[mine], read_as(version, 0).numpy()[mine], rtol=1e-5, atol=1e-6
        )
    done = Backfill(lineage, store, "object").apply()
    assert (done.state, done.refreshed, done.remaining) == ("applied", 300, 0.0)
    assert done.held == {1: 20, 2: 300}
    again = Backfill(lineage, store, "object").apply()
    assert again == done


def test_the_largest_predicted_error_comes_first(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward map that loses the last two coordinates: rows that are long there are worst."""
    forward = torch.eye(10, 8, dtype=torch.float64)
    forward[6:] = 0
    offset = torch.zeros(10, dtype=torch.float64)
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: (forward, offset))
    store = older(lineage)
    work = Backfill(lineage, store, "object")
    work.plan(batch=50)
    work.apply(rows=50)
    first = {i for rows in store.scan(2) for i in rows.ids.to_pylist()}
    vectors = vectors_of(1).numpy()
    back = np.array([*vectors.T[:6] * 2 / 3 + 0.2, np.full(300, 0.2), np.full(300, 0.2)]).T
    lost = np.linalg.norm(back - vectors, axis=1)
    assert first == set(np.argsort(-lost)[:50].tolist())


def test_rows_are_put_back_but_those_written_anew(lineage: Lineage) -> None:
    store = older(lineage)
    before = {i: v for rows in store.scan() for i, v in _pairs(rows)}
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
    after = {i: v for rows in store.scan() for i, v in _pairs(rows)}
    np.testing.assert_array_equal(after.pop(added)[:10], fresh[0])
    before.pop(added)
    assert after.keys() == before.keys()
    assert all((after[i] == before[i]).all() for i in after)
    with pytest.raises(LineageError, match="rolled back"):
        work.apply()
    assert work.plan().rows == 299


def _pairs(rows: Rows) -> list[tuple[int, np.ndarray]]:
    return list(zip(rows.ids.to_pylist(), rows.vectors, strict=True))


@pytest.mark.parametrize("fails", range(1, 12))
def test_a_store_that_fails_at_any_write_loses_nothing(lineage: Lineage, fails: int) -> None:
    """It goes away at the n-th write, and comes back."""
    store = older(lineage)
    before = {i: v for rows in store.scan() for i, v in _pairs(rows)}
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
    after = {i: v for rows in store.scan() for i, v in _pairs(rows)}
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


def test_what_cannot_be_done_is_said(lineage: Lineage) -> None:
    store = older(lineage)
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


def test_a_flipped_bit_in_a_journal_puts_nothing_wrong_back(lineage: Lineage) -> None:
    store = older(lineage)
    before = {i: v for rows in store.scan() for i, v in _pairs(rows)}
    work = Backfill(lineage, store, "object")
    work.plan(batch=400)
    work.apply()
    after = {i: v for rows in store.scan() for i, v in _pairs(rows)}
    path = next((work.folder / "journal").glob("*.sealed"))
    whole = path.read_bytes()
    noticed = 0
    draw = np.random.default_rng(0)
    for at in draw.integers(0, len(whole), 200):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(draw.integers(8))
        path.write_bytes(flipped)
        try:
            work.rollback()
        except IntegrityError:
            noticed += 1
        for rows in store.scan():
            for key, vector in _pairs(rows):
                assert any(np.array_equal(vector, known[key]) for known in (before, after))
    assert noticed == 200


def test_filling_twice_changes_nothing(lineage: Lineage) -> None:
    store = DictionaryStore()
    assert fill(lineage, store, "object") == 300
    before = store.count()
    fill(lineage, store, "object")
    assert store.count() == before == {2: 300}
    assert store.spaces()[2].dim == 10 + 3


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The copy of the published file, which is a snapshot, is a dictionary here."""
    made: dict[str, DictionaryStore] = {}
    monkeypatch.setattr(
        module, "open_store", lambda path, create=None: made.setdefault(path, DictionaryStore())
    )


@pytest.mark.long
def test_killed_two_hundred_times_it_loses_nothing(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_backfill", str(tmp_path), "200"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert result["kills"] >= 200
    assert result["moments"] > 20, "the kills came at many points of the way"
    assert result["done"] == 300


def withdrawn_under_way(lineage: Lineage) -> tuple[DictionaryStore, list[tuple[int, np.ndarray]]]:
    """Version 3 was published, 100 rows were refreshed to it, and it was taken back."""
    store = DictionaryStore()
    fill(lineage, store, "object")
    before = [pair for rows in store.scan() for pair in _pairs(rows)]
    publish(lineage, 3)
    Backfill(lineage, store, "object").plan(batch=50)
    Backfill(lineage, store, "object").apply(rows=100)
    lineage.label("stable", 2)
    lineage.withdraw(3, "it was bad")
    return store, before


def test_a_refresh_to_a_version_that_was_withdrawn_is_undone(lineage: Lineage) -> None:
    lineage.label("kept", 2)
    store, before = withdrawn_under_way(lineage)
    with pytest.raises(LineageError, match=r"holds rows of version 3, which was withdrawn: put"):
        Reader(lineage, {"object": store})
    work = Backfill(lineage, store, "object")
    assert work.status().held == {2: 200, 3: 100}
    with pytest.raises(LineageError, match="withdrawn"):
        work.apply()
    assert work.rollback().held == {2: 300}
    after = sorted((pair for rows in store.scan() for pair in _pairs(rows)), key=lambda p: p[0])
    for one, other in zip(sorted(before, key=lambda p: p[0]), after, strict=True):
        assert one[0] == other[0]
        np.testing.assert_array_equal(one[1], other[1])
    assert len(Reader(lineage, {"object": store}).embed(range(300), 0).vectors) == 300


def test_rows_of_a_withdrawn_version_are_filled_over_or_go(lineage: Lineage) -> None:
    lineage.label("kept", 2)
    store, _ = withdrawn_under_way(lineage)
    space = store.spaces()[3]
    store.upsert(Rows(3, pa.array([5000]), np.ones((1, space.dim), np.float32)))
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
    reader = Reader.open(lineage)
    found = reader.embed([0, 349], 2)
    assert found.sources.tolist() == [2, -1]
    reader.close()


def test_room_that_another_lineage_made_is_not_filled(lineage: Lineage) -> None:
    """Its process was killed before it wrote a row."""
    store = DictionaryStore()
    mine = space_of(lineage, 2)
    store.add_space(Space(2, mine.dim, "sha256:another"))
    with pytest.raises(IntegrityError, match="belongs to another lineage"):
        fill(lineage, store, "object")
    assert store.count() == {}
    store = DictionaryStore()
    store.add_space(space_of(lineage, 2, norms=False))
    assert fill(lineage, store, "object") == 300


def test_a_vector_that_is_too_long_for_its_norm_is_named(lineage: Lineage) -> None:
    space = space_of(lineage, 1)
    vectors = np.ones((2, 8), np.float32)
    vectors[1] = 1e30
    with pytest.raises(DataError, match=r"id 8 of version 1 is too long.*scaled down"):
        stored_rows(lineage, VersionMaps(lineage), space, pa.array([7, 8]), vectors)


@pytest.mark.parametrize("form", ["vec", "lance:vec#emb", "qdrant:vec#emb"])
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


def test_what_is_written_by_hand_after_a_kill_is_put_back(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the old rows were kept and before the new ones were written."""
    store = older(lineage)
    work = Backfill(lineage, store, "object")
    work.plan(batch=300)

    def killed(rows: Rows) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(store, "upsert", killed)
        with pytest.raises(KeyboardInterrupt):
            work.apply()
    space = space_of(lineage, 1)
    mine = stored_rows(
        lineage, VersionMaps(lineage), space, pa.array([5]), np.full((1, 8), 3, np.float32)
    )
    store.upsert(mine)
    before = {i: z for rows in store.scan() for i, z in _pairs(rows)}
    for _ in range(2):
        with monkeypatch.context() as during:
            during.setattr(store, "upsert", killed)
            with pytest.raises(KeyboardInterrupt):
                work.apply()
    assert len(list((work.folder / "journal").iterdir())) == 2, "what is known is not kept again"
    assert work.apply().held == {1: 20, 2: 300}
    assert work.rollback().held == {1: 320}
    for rows in store.scan():
        for i, z in _pairs(rows):
            np.testing.assert_array_equal(z, before[i])


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("progress.json", {"state": "planned"}),
        ("progress.json", {"state": "planned", "done": "all"}),
        ("progress.json", {"state": "planned", "done": -1}),
        ("progress.json", []),
        ("plan.json", {"target": 2}),
        ("plan.json", {"target": True, "fingerprint": 1, "batch": 1, "rows": 1, "without": 1}),
    ],
)
def test_state_that_is_not_a_backfills_is_an_error(
    lineage: Lineage, name: str, facts: object
) -> None:
    work = Backfill(lineage, older(lineage), "object")
    work.plan()
    (work.folder / name).write_text(json.dumps(facts))
    with pytest.raises(IntegrityError, match=f"{name} cannot be read: .* plan again"):
        work.apply()


def test_a_table_that_is_not_a_backfills_is_an_error(lineage: Lineage) -> None:
    work = Backfill(lineage, older(lineage), "object")
    work.plan()
    write_table(work.folder / "order.sealed", pa.table({"key": [1]}))
    with pytest.raises(IntegrityError, match=r"order\.sealed is no table of a backfill"):
        work.apply()
    content = b"no table of Arrow's"
    sealed = hashlib.sha256(content).digest() + content
    (work.folder / "order.sealed").write_bytes(sealed)
    with pytest.raises(IntegrityError, match=r"order\.sealed is no table of a backfill"):
        work.apply()
