"""A backfill of a store without transactions, killed before rows leave their old version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.agreement import as_dict
from tests.support.lineages import vectors_of
from tests.support.older_stores import older_store
from tests.support.store_kinds import STORES

from evergram.errors import StoreError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.reader import Reader
from evergram.stores.rows import Rows
from evergram.stores.store import Store
from evergram.stores.table_per_version import TablePerVersionStore

TWO_STEPS = ["lance", "qdrant"]
BATCH = 64

pytestmark = pytest.mark.usefixtures("backfill_in_memory")


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


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("kind", TWO_STEPS)
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


@pytest.mark.parametrize("command", ["plan", "apply"])
@pytest.mark.parametrize("kind", TWO_STEPS)
def test_a_store_that_was_left_with_ids_twice_is_repaired(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, command: str
) -> None:
    store = filled(kind, tmp_path / "s", lineage)
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
    store.close()


@pytest.mark.parametrize("kind", TWO_STEPS)
def test_rows_are_put_back_after_a_kill(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store = filled(kind, tmp_path / "s", lineage)
    before = as_dict(store.scan())
    work = Backfill(lineage, store, "object")
    work.plan(BATCH)
    killed(work, store, 2, monkeypatch)
    work.apply()
    assert work.rollback().held == {1: 320}
    assert as_dict(store.scan()) == before
    store.close()
