"""The column of a version is filled in tables of one's own, and emptied again: nothing else in them
is ever changed, and every row is read rightly at every moment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg.sql import SQL
from tests.support.command import Command, evergram
from tests.support.lineages import DIMS, lineage_of, publish, vectors_of
from tests.support.own_tables import (
    KINDS,
    OWN,
    contents,
    listed,
    own_store,
    quoted,
    table_of,
    text_of,
)
from tests.support.postgres_server import postgres

from evergram.errors import DataError, EvergramError, IntegrityError, LineageError, StoreError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfill import Backfill, fill_stores
from evergram.retrieval.reader import Reader
from evergram.stores import pgvector_store
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows, Space

__all__ = ["evergram"]

# Rows of tables, of which the last two were never published; those from 50 on have no vector.
ROWS, PUBLISHED = 62, 60
HELD = {0: range(50)}
OLD, NEW = vectors_of(0, PUBLISHED).numpy(), vectors_of(1, PUBLISHED).numpy()
AS_OLD = NEW[:, :6] / 2 + np.float32(0.1)


@pytest.fixture
def two(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line", 2, PUBLISHED, canaries=2)


def to_fill(kind: str, folder: Path, held: dict[int, range] | None = None) -> str:
    """Return the address of a new table, which names the column e1."""
    address = own_store(kind, folder / "own", ROWS, held or HELD)
    return address if "&v1=" in address else address.replace("&v0=e0", "&v0=e0&v1=e1")


def table_name(address: str) -> str:
    return address.partition("&")[0].rpartition("=")[2]


def others(address: str) -> dict[int, Any]:
    """Return a table without the new column."""
    return {i: {k: v for k, v in row.items() if k != "e1"} for i, row in contents(address).items()}


def filled(address: str) -> dict[int, bytes]:
    """Return the cells of the new column that have a vector, as float32."""
    cells = {i: row["e1"] for i, row in contents(address).items() if row.get("e1") is not None}
    kinds = {4 * DIMS[1]: np.float32, 8 * DIMS[1]: np.float64}
    return {
        i: np.frombuffer(cell, kinds[len(cell)]).astype(np.float32).tobytes()
        for i, cell in cells.items()
    }


def put(address: str, key: int, vector: np.ndarray) -> None:
    """Write a cell of the new column, as the program that owns the table does."""
    kind, _, rest = address.partition(":")
    place, name = rest.partition("#")[0], table_name(address)
    if kind == "pgvector-table":
        postgres().sql(f"update {name} set e1 = '{text_of(vector)}' where id = {key}")
    elif kind == "lance-table":
        import lancedb

        table = lancedb.connect(place).open_table(name)
        schema = table.schema
        cells = {"id": pa.array([key]), "e1": listed(vector[None])}
        written = pa.table({name: cells[name].cast(schema.field(name).type) for name in cells})
        table.merge_insert("id").when_matched_update_all().execute(written)
    else:
        from qdrant_client import models

        with open_store(address, create="int64") as store:
            point = models.PointVectors(id=key, vector={"e1": vector.tolist()})
            vars(store)["_ask"]("update_vectors", name, [point])


def check_reads(reader: Reader, new: set[int]) -> None:
    """Check that each row is read at the version of its newest vector, by id and by search."""
    read = reader.embed(list(range(ROWS)), 0)
    for key, (source, vector) in enumerate(zip(read.sources, read.vectors, strict=True)):
        assert source == (1 if key in new else 0 if key in HELD[0] else -1)
        if source >= 0:
            np.testing.assert_allclose(vector, (OLD, AS_OLD)[source][key], atol=1e-5)
    (hits,) = reader.search(np.ones(6, np.float32), ROWS, 0, metric="ip")
    assert set(hits.ids.to_pylist()) == new | set(HELD[0])
    known = {i: (AS_OLD if i in new else OLD)[i].sum() for i in hits.ids.to_pylist()}
    np.testing.assert_allclose(hits.scores, [known[i] for i in hits.ids.to_pylist()], atol=1e-4)


@pytest.mark.parametrize("kind", OWN)
def test_a_column_is_added_filled_and_dropped_with_right_reads_at_every_batch(
    kind: str, two: Lineage, tmp_path: Path
) -> None:
    address = to_fill(kind, tmp_path)
    before = contents(address)
    with open_store(address) as store:
        reader, work = Reader(two, {"object": store}), Backfill(two, store, "object")
        assert isinstance(store, AdoptedStore)
        assert store.missing_columns() == {1: "e1"}
        plan = work.plan(batch=7)
        assert (plan.state, plan.rows, plan.held) == ("planned", PUBLISHED, {0: 50})
        assert contents(address) == before
        order: list[tuple[int, int]] = []

        def look(done: int, total: int) -> None:
            order.append((done, total))
            new = filled(address)
            assert len(new) == done
            assert all(cell == NEW[key].tobytes() for key, cell in new.items())
            assert others(address) == before
            check_reads(reader, set(new))

        paused = work.apply(rows=20, progress=look)
        assert (paused.state, paused.refreshed) == ("paused", 20)
        # Rows that nobody could find come first.
        assert set(filled(address)) > set(range(50, 60))
        done = Backfill(two, store, "object").apply(progress=look)
        assert (done.state, done.held) == ("applied", {1: PUBLISHED})
        assert order[:4] == [(0, 60), (7, 60), (14, 60), (20, 60)]
        assert Backfill(two, store, "object").apply() == done

        back: list[int] = []

        def look_back(number: int, total: int) -> None:
            back.append(len(filled(address)))
            check_reads(reader, set(filled(address)))

        assert work.rollback(progress=look_back).held == {0: 50}
        assert back == sorted(back, reverse=True)
        assert back[-1] == 0
        check_reads(reader, set())
    assert contents(address) == before
    assert [p.name for p in (tmp_path / "own").glob("*evergram.lance")] == []
    if kind == "pgvector-table":
        (journal,) = postgres().sql(f"select to_regclass('{table_name(address)}_evergram')")
        assert journal == (None,)


@pytest.mark.parametrize("kind", OWN)
def test_cells_of_another_program_are_left(kind: str, two: Lineage, tmp_path: Path) -> None:
    """Before, between and after; and a column that the owner has made is not dropped."""
    address = to_fill(kind, tmp_path, {0: range(50), 1: range(10)})
    own = NEW[3] * np.float32(1.5)
    with open_store(address) as store:
        work = Backfill(two, store, "object")
        work.plan(batch=10)
        work.apply(rows=10)
        late = next(key for key in range(10, 50) if key not in filled(address))
        put(address, late, own)
        assert work.apply().state == "applied"
        changed = next(key for key in range(40, 50) if key != late)
        put(address, changed, own)
        kept = {**{key: NEW[key].tobytes() for key in range(10)}}
        kept |= {late: own.tobytes(), changed: own.tobytes()}
        assert kept.items() < filled(address).items()
        before = others(address)
        work.rollback()
        assert filled(address) == kept
        assert others(address) == before
        # Once more: nothing is left to undo, and what is empty is planned.
        assert work.rollback().state == "rolled back"
        assert work.plan().rows == PUBLISHED - len(kept)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_was_added_stays_if_another_program_has_filled_a_cell(
    kind: str, two: Lineage, tmp_path: Path
) -> None:
    address = to_fill(kind, tmp_path)
    fill_stores(two, {"object": address})
    put(address, 5, 2 * NEW[5])
    with open_store(address) as store:
        Backfill(two, store, "object").rollback()
    assert filled(address) == {5: (2 * NEW[5]).tobytes()}


def change(address: str, removed: list[int], added: list[int]) -> None:
    """Remove rows and add rows with an old vector, as the program that owns the table does."""
    kind, _, rest = address.partition(":")
    place, name = rest.partition("#")[0], table_name(address)
    if kind == "pgvector-table":
        postgres().sql(f"delete from {name} where id = any(array{removed}::bigint[])")
        for key in added:
            cell = text_of(OLD[key])
            postgres().sql(f"insert into {name} (id, title, e0) values ({key}, 'new', '{cell}')")
    elif kind == "lance-table":
        import lancedb

        table = lancedb.connect(place).open_table(name)
        if removed:
            table.delete(f"id in ({', '.join(map(str, removed))})")
        if added:
            table.add(pa.table({"id": pa.array(added, pa.int32()), "e0": listed(OLD[added])}))
    else:
        from qdrant_client import models

        with open_store(address, create="int64") as store:
            ask = vars(store)["_ask"]
            points = [models.PointStruct(id=k, vector={"e0": OLD[k].tolist()}) for k in added]
            if removed:
                ask("delete", name, removed)
            if points:
                ask("upsert", name, points)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_come_and_go_meanwhile(kind: str, two: Lineage, tmp_path: Path) -> None:
    """What is removed does not come back, and what is added is filled by the next `store fill`."""
    address = to_fill(kind, tmp_path)
    change(address, [3, 4], [])
    with open_store(address) as store:
        work = Backfill(two, store, "object")
        assert work.plan(batch=10).rows == PUBLISHED - 2
        waiting = work.order()[0].to_pylist()[-2:]

        def also(done: int, _: int) -> None:
            if done == 0:
                change(address, waiting, [3, 4])

        work.apply(rows=20, progress=also)
        work.apply()
        left = set(range(PUBLISHED)) - set(waiting)
        assert set(filled(address)) == left - {3, 4}
        (again,) = fill_stores(two, {"object": address})
        assert again.rows == 2
        assert filled(address) == {key: NEW[key].tobytes() for key in left}
        # Ids of rows that were removed may be in the journal; nothing is written for them.
        assert work.rollback().held == {0: len(left & set(HELD[0]))}
        assert set(contents(address)) == set(range(ROWS)) - set(waiting)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_backfill_is_paused(
    kind: str, two: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = to_fill(kind, tmp_path)
    with open_store(address) as store:
        assert isinstance(store, AdoptedStore)
        work = Backfill(two, store, "object")
        work.plan(batch=10)
        refresh, calls = type(store).refresh, []

        def interrupted(self: AdoptedStore, *args: Any) -> None:
            calls.append(1)
            if len(calls) == 4:
                refresh(self, *args)
            if len(calls) >= 3:
                raise KeyboardInterrupt
            refresh(self, *args)

        with monkeypatch.context() as during:
            during.setattr(type(store), "refresh", interrupted)
            # Before a batch is written, and after.
            for cells in (20, 30):
                with pytest.raises(KeyboardInterrupt):
                    work.apply()
                assert (work.status().state, work.status().refreshed) == ("paused", 20)
                assert len(filled(address)) == cells
        with pytest.raises(LineageError, match="is paused"):
            work.plan()
        assert work.apply().held == {1: PUBLISHED}
        assert work.rollback().held == {0: 50}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_its_owner_drops_meanwhile(kind: str, two: Lineage, tmp_path: Path) -> None:
    address = to_fill(kind, tmp_path)
    before = contents(address)

    def drop(done: int, _: int) -> None:
        with open_store(address) as other:
            if done == 20 and isinstance(other, AdoptedStore):
                other.clear_cells(0, rows_of(range(PUBLISHED), NEW))
                vars(type(other))["_drop_column"](other, 1)

    with open_store(address) as store:
        work = Backfill(two, store, "object")
        for step in ("apply", "rollback"):
            work.plan(batch=10)
            with pytest.raises(StoreError, match="'e1', which the table does not have"):
                work.apply(progress=drop)
            assert contents(address) == before
            done = getattr(work, step)()
            # What was filled before is filled again.
            assert done.held == ({1: PUBLISHED} if step == "apply" else {0: 50})
            work.rollback()
        assert contents(address) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollback_elsewhere_forgets_no_cell(kind: str, two: Lineage, tmp_path: Path) -> None:
    """Two machines have a copy of the lineage, and no lock on a file is between them."""
    address = to_fill(kind, tmp_path, {0: range(50), 1: range(0)})
    shutil.copytree(two.path, tmp_path / "copy")
    with open_store(address) as one, open_store(address) as other:
        first = Backfill(two, one, "object")
        second = Backfill(Lineage.open(tmp_path / "copy"), other, "object")
        for work in (first, second):
            work.plan(batch=10)
        first.apply(rows=30)

        def also(done: int, total: int) -> None:
            if done == 0:
                first.apply(rows=20)

        assert second.rollback(progress=also).held == {0: 30, 1: 20}
        assert isinstance(one, AdoptedStore)
        noted = {key for _, ids in one.journal(1) for key in ids.to_pylist()}
        assert set(filled(address)) == noted
        assert first.rollback().held == {0: 50}
        assert not filled(address)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_meanwhile_is_right(kind: str, two: Lineage, tmp_path: Path) -> None:
    """Also where no batch has ended: cells are filled, emptied and dropped as it reads."""
    address = to_fill(kind, tmp_path)
    with open_store(address) as store, open_store(address) as reading:
        work, reader = Backfill(two, store, "object"), Reader(two, {"object": reading})
        work.plan(batch=15)
        errors: list[BaseException] = []

        def write() -> None:
            try:
                work.apply()
                work.rollback()
            except BaseException as error:
                errors.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        while writer.is_alive():
            read = reader.embed(list(range(50)), 0)
            for key, source in enumerate(read.sources):
                expected = (OLD, AS_OLD)[source][key]
                np.testing.assert_allclose(read.vectors[key], expected, atol=1e-5)
            (hits,) = reader.search(np.ones(6, np.float32), ROWS, 0, metric="ip")
            assert set(range(50)) <= set(hits.ids.to_pylist())
        writer.join()
        assert not errors


def test_a_row_that_loses_its_new_vector_meanwhile_is_found_on_a_server(
    two: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of Qdrant has no snapshots."""
    from evergram.stores.qdrant_store import AdoptedCollection

    address = to_fill("qdrant-collection, Dot", tmp_path)
    fill_stores(two, {"object": address})
    with open_store(address) as store:
        assert isinstance(store, AdoptedCollection)
        reader, pages = Reader(two, {"object": store}), AdoptedCollection._rows
        store._remote, waiting = True, [7]

        def cleared(self: AdoptedCollection, version: int, *args: Any, **options: Any) -> Any:
            if version == 1 and waiting:
                store.clear_cells(0, rows_of([waiting.pop()], NEW[[7]]))
            return pages(self, version, *args, **options)

        monkeypatch.setattr(AdoptedCollection, "_rows", cleared)
        assert reader.embed([6, 7, 61], 0).sources.tolist() == [1, 0, -1]


def test_integers_of_a_lineage_are_texts_in_a_table(two: Lineage, tmp_path: Path) -> None:
    for kind, types in (
        *(("pgvector-table", {"id": "varchar"}), ("lance-table", {"id": pa.large_string()})),
        ("qdrant-collection", {}),
    ):
        columns = {"id": [str(key) for key in range(PUBLISHED)]}
        address = table_of(kind, tmp_path / kind, columns, OLD, types) + "&id=id&v1=e1"
        with open_store(address) as store:
            work = Backfill(two, store, "object")
            work.plan(batch=25)
            assert work.apply().held == {1: PUBLISHED}
            (read,) = store.fetch(["41"])
            np.testing.assert_array_equal(read.vectors[0], NEW[41])
            assert work.rollback().held == {0: PUBLISHED}
    texts = lineage_of(tmp_path / "texts", 2, PUBLISHED, text=True, canaries=2)
    address = to_fill("pgvector-table", tmp_path).replace("v0=e0", "v2=e2")
    address = address.partition("&filter")[0]
    with pytest.raises(EvergramError, match="int64"):
        fill_stores(texts, {"object": address}, version=1)


def failing_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the n-th request to a database fail, before or after it was done."""
    from lancedb.table import LanceTable
    from qdrant_client.local.qdrant_local import QdrantLocal

    calls: list[int] = []

    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == number and number % 2:
                raise OSError("the database went away")
            result = method(*args, **options)
            if len(calls) == number:
                raise OSError("the database went away")
            return result

        return call

    for owner, names in (
        (psycopg.Connection, ["execute"]),
        (LanceTable, ["add", "_do_merge", "add_columns", "drop_columns", "delete"]),
        (QdrantLocal, ["upsert", "update_vectors", "delete_vectors", "create_vector_name"]),
        (QdrantLocal, ["delete_vector_name", "delete", "create_collection"]),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, wrapped(getattr(owner, name)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_database_that_fails_at_any_request_loses_nothing(
    kind: str, two: Lineage, tmp_path: Path
) -> None:
    address = to_fill(kind, tmp_path)
    before = contents(address)
    with open_store(address) as store:
        Backfill(two, store, "object").plan(batch=6)
    for step in ("apply", "rollback"):
        failures = number = 0
        while True:
            number += 9 if kind == "pgvector-table" else 2
            with pytest.MonkeyPatch.context() as during:
                try:
                    with open_store(address) as store:
                        work = Backfill(two, store, "object")
                        failing_at(number, during)
                        getattr(work, step)()
                    break
                except (EvergramError, OSError):
                    failures += 1
            assert others(address) == before
            new = filled(address)
            assert all(cell == NEW[key].tobytes() for key, cell in new.items())
            with open_store(address) as store:
                assert isinstance(store, AdoptedStore)
                noted = {i for _, ids in store.journal(1) for i in ids.to_pylist()}
                assert set(new) <= noted
                check_reads(Reader(two, {"object": store}), set(new))
        assert failures > 2
        assert len(filled(address)) == (PUBLISHED if step == "apply" else 0)
    assert others(address) == before


def test_two_machines_fill_one_column_at_once(two: Lineage, tmp_path: Path) -> None:
    """Each has a copy of the lineage, so that no lock on a file is between them."""
    address = to_fill("pgvector-table", tmp_path)
    shutil.copytree(two.path, tmp_path / "copy")
    name = table_name(address)
    postgres().sql(f"create table {name}_log (id bigint)")
    postgres().sql(
        f"create function {name}_note() returns trigger language plpgsql as "
        f"$$ begin insert into {name}_log values (new.id); return new; end $$"
    )
    postgres().sql(
        f"create trigger noted after update on {name} for each row execute function {name}_note()"
    )
    with open_store(address) as one, open_store(address) as other:
        first = Backfill(two, one, "object")
        second = Backfill(Lineage.open(tmp_path / "copy"), other, "object")
        for work in (first, second):
            work.plan(batch=10)

        def also(done: int, _: int) -> None:
            second.apply(rows=7)
            with pytest.raises(LineageError, match="Another process is refreshing"):
                Backfill(two, one, "object").apply()

        first.apply(progress=also)
        assert second.apply().state == "applied"
        log = [key for (key,) in postgres().sql(f"select id from {name}_log")]
        assert (len(log), set(log)) == (PUBLISHED, set(range(PUBLISHED)))
        assert second.rollback().held == first.rollback().held == {0: 50}
    assert "e1" not in contents(address)[0]


def test_what_cannot_be_filled_is_refused_before_a_write(
    two: Lineage, tmp_path: Path, evergram: Command
) -> None:
    for kind in KINDS:
        folder = tmp_path / kind
        address = own_store(kind, folder / "none", ROWS, HELD)
        plan = ("store", "backfill", "plan", str(two.path), "--store")
        assert "write &v1=COLUMN" in evergram.refused(*plan, f"object={address}")
        wide = address.replace("&v0=e0", "&v0=e0&v1=e2")
        twice = own_store(kind, folder / "wide", ROWS, {0: range(50), 2: range(0)})
        twice = twice.replace("&v2=e2", "&v1=e2")
        assert "has 10 dims, not 8" in evergram.refused(*plan, f"object={twice}")
        index = evergram.refused(
            "store", "fill", str(two.path), "--store", f"object={wide}", "--index"
        )
        assert "build its indexes by your own program" in index
        assert "your own program" in evergram.refused("store", "index", address)
        for one in (address, twice):
            assert not filled(one)


def test_another_models_column_is_not_filled_up(two: Lineage, tmp_path: Path) -> None:
    address = to_fill("pgvector-table", tmp_path, {0: range(50), 1: range(20)})
    postgres().sql(f"update {table_name(address)} set e1 = e1 * e1")
    with open_store(address) as store, pytest.raises(IntegrityError, match="another model's"):
        Backfill(two, store, "object")


def test_qdrant_does_not_change_the_length_of_vectors(two: Lineage, tmp_path: Path) -> None:
    unit = OLD.copy()
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    address = table_of(
        "qdrant-collection", tmp_path / "q", {"id": range(PUBLISHED)}, unit, {"distance": "Cosine"}
    )
    with open_store(f"{address}&v1=e1", create="int64") as store:
        assert isinstance(store, AdoptedStore)
        store.begin(Space(1, DIMS[1], ""))
        with pytest.raises(DataError, match="not of length 1"):
            store.refresh(rows_of(range(PUBLISHED), NEW))
        length = np.linalg.norm(NEW, axis=1, keepdims=True)
        store.refresh(rows_of(range(PUBLISHED), NEW / length))
        assert store.count() == {1: PUBLISHED}
        store.search({1: np.ones((1, 8), np.float32)}, 3)
        ((number, ids),) = store.journal(1)
        store.clear_cells(number, rows_of(ids, (NEW / length)[ids.to_numpy()]))
        assert store.count() == {0: PUBLISHED}


def rows_of(ids: Any, vectors: np.ndarray) -> Rows:
    return Rows(1, pa.array(ids, pa.int64()), vectors.astype(np.float32))


def test_a_server_that_cannot_add_a_vector_says_what_to_do(
    two: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdrant_client.local.qdrant_local import QdrantLocal

    def missing(*args: Any, **options: Any) -> None:
        raise RuntimeError("Unexpected Response: 404 (Not Found)")

    monkeypatch.setattr(QdrantLocal, "create_vector_name", missing)
    address = to_fill("qdrant-collection, Dot", tmp_path)
    with pytest.raises(StoreError, match=r"1\.18.*copy the points to a new collection.*8 dims"):
        fill_stores(two, {"object": address})
    assert not filled(address)


def test_roles_need_no_more_than_the_documents_say(two: Lineage, tmp_path: Path) -> None:
    address = to_fill("pgvector-table", tmp_path)
    name = table_name(address)
    roles = {"r": f"{name}_reads", "w": f"{name}_fills"}
    for role in roles.values():
        postgres().sql(f"create role {role} login")
        postgres().sql(f"grant select on {name} to {role}")
    by = {k: address.replace("postgres:@", f"{role}@") for k, role in roles.items()}
    with open_store(by["r"]) as store:
        check_reads(Reader(two, {"object": store}), set())
        work = Backfill(two, store, "object")
        work.plan()
        with pytest.raises(StoreError, match="permission denied"):
            work.apply()
        shutil.rmtree(work.folder)
    # What an owner does for a role that must not change the table.
    postgres().sql(f"alter table {name} add column e1 vector(8)")
    postgres().sql(
        f"create table {name}_evergram (number bigint generated always as identity primary key,"
        " column_name text not null, ids bigint[], at timestamptz not null default now())"
    )
    postgres().sql(f"grant update (e1) on {name} to {roles['w']}")
    postgres().sql(f"grant select, insert, delete on {name}_evergram to {roles['w']}")
    with open_store(by["w"]) as store, open_store(by["r"]) as reading:
        work = Backfill(two, store, "object")
        work.plan(batch=30)
        work.apply(rows=30)
        check_reads(Reader(two, {"object": reading}), set(filled(address)))
        assert work.apply().held == {1: PUBLISHED}
        assert work.rollback().held == {0: 50}
    assert contents(address)[0]["e1"] is None


def test_a_row_that_is_locked_too_long_is_filled_later(
    two: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = pgvector_store.BEGIN.as_string(None).replace("'5s'", "'50ms'")
    monkeypatch.setattr(pgvector_store, "BEGIN", SQL(begin))
    address = to_fill("pgvector-table", tmp_path)
    with open_store(address) as store, psycopg.connect(postgres().uri) as owner:
        work = Backfill(two, store, "object")
        work.plan(batch=10)
        work.apply(rows=10)
        done = set(filled(address))
        key = next(i for i in range(50) if i not in done)
        query = f"update {table_name(address)} set title = 'other' where id = {key}"
        owner.execute(query.encode())
        with pytest.raises(StoreError, match="lock timeout"):
            work.apply()
        owner.commit()
        assert work.apply().held == {1: PUBLISHED}
    assert contents(address)[key]["title"] == "other"


IDS: list[tuple[str, str, Any, list[Any]]] = [
    ("pgvector-table", "My id", "uuid", [f"00000000-0000-0000-0000-{i:012d}" for i in range(20)]),
    ("pgvector-table", "id", "varchar", [f"it's {i}" for i in range(20)]),
    ("pgvector-table", "id", "smallint", list(range(20))),
    ("lance-table", "My id", pa.large_string(), [f"it's {i}" for i in range(20)]),
    ("lance-table", "id", pa.uint16(), list(range(20))),
    ("qdrant-collection", "id", None, [f"it's {i}" for i in range(20)]),
]


@pytest.mark.parametrize(("kind", "column", "of", "ids"), IDS)
def test_ids_of_every_type_and_names_that_need_quotes(
    kind: str, column: str, of: Any, ids: list[Any], tmp_path: Path
) -> None:
    halves = {"pgvector-table": "halfvec(6)", "lance-table": pa.float16()}.get(kind)
    old = "e % 0" if kind != "qdrant-collection" else "e0"
    types = {column: of, old: halves} if of else {}
    vectors = vectors_of(0, 20).numpy()
    address = table_of(kind, tmp_path, {column: ids, "x": range(20)}, vectors, types, old)
    # Qdrant lets no name have a double quote.
    new = "50% 'a' {c}; --" if kind == "qdrant-collection" else """50% 'a"b' {c}; --"""
    address += f"&id={column}&v1={new.replace('%', '%25').replace(' ', '%20')}"
    rows = rows_of([], np.zeros((0, 8)))
    with open_store(address, create="int64") as store:
        assert isinstance(store, AdoptedStore)
        store.begin(Space(1, 8, ""))
        store.begin(Space(1, 8, ""))
        absent = ids[3] + 99 if isinstance(ids[3], int) else "00000000-0000-0000-0000-ffffffffffff"
        keys = pa.array([*ids[:12], absent], store.id_type)
        rows = type(rows)(1, keys, vectors_of(1, 13).numpy())
        for _ in range(2):
            store.refresh(rows)
        assert store.count() == {0: 8, 1: 12}
        (read,) = store.fetch(ids[:1])
        np.testing.assert_allclose(read.vectors[0], rows.vectors[0], rtol=2e-3)
        entries = store.journal(1)
        assert set(ids[:12]) <= {key for _, noted in entries for key in noted.to_pylist()}
        for number, _ in entries:
            store.clear_cells(number, rows)
        assert store.count() == {0: 20}
        assert list(store.undo(1, store)) == [(0, 0)]
        assert store.missing_columns() == {1: new}
        assert store.journal(1) == []
    if kind == "pgvector-table":
        assert quoted(new) not in str(postgres().sql("select attname from pg_attribute"))


def test_a_table_is_filled_from_nothing_by_the_command(
    two: Lineage, tmp_path: Path, evergram: Command
) -> None:
    """Also with the newest version before it is promoted, and undone after it was withdrawn."""
    address = own_store("pgvector-table", tmp_path / "own", ROWS, HELD).replace("v0=e0", "v1=e1")
    address = address.partition("&filter")[0]
    line, store = str(two.path), f"object={address}"
    assert "e1" in evergram.refused("store", "backfill", "plan", line, "--store", store)
    result = evergram("store", "fill", line, "--store", store, "--json")
    assert result.json["stores"][0] | {"store": ""} == {
        **{"store": "", "side": "object", "rows": PUBLISHED, "held": {"1": PUBLISHED}},
    }
    assert "0 of 60 rows of side object" in result.err
    assert "60 of 60 rows of side object" in result.err
    assert " a second, 0:00:00 left" in result.err
    publish(two, 2, PUBLISHED, promote=False, canaries=2)
    again = f"{store}&v2=e2"
    filled = evergram("store", "fill", line, "--store", again, "--as", "2", "--json").json
    assert filled["stores"][0]["held"] == {"2": PUBLISHED}
    undone = own_store("pgvector-table", tmp_path / "own", ROWS, HELD).partition("&v0")[0]
    assert evergram("store", "fill", line, "--store", f"object={undone}&v1=e1").code == 0
    back = evergram("store", "backfill", "rollback", line, "--store", f"object={undone}&v1=e1")
    assert (back.code, "held: none" in back.out) == (0, True)
    more = evergram("store", "backfill", "apply", line, "--store", again, "--json").json
    assert (more["state"], more["target"]) == ("applied", 2)
    assert evergram("lineage", "withdraw", line, "--reason", "it was bad").code == 0
    back = evergram("store", "backfill", "rollback", line, "--store", again, "--json").json
    assert back["held"] == {"1": PUBLISHED}


def test_the_column_of_a_withdrawn_sample_is_filled_up_by_the_next_version(tmp_path: Path) -> None:
    lineage, address = lineage_of(tmp_path / "line", 1, PUBLISHED, canaries=2), ""
    for rows, column in ((20, "&v1=e1"), (PUBLISHED, "&v2=e1")):
        # Both versions are of one model, and so are their vectors.
        publish(lineage, 1, rows, promote=False, canaries=2)
        address = address or to_fill("pgvector-table", tmp_path)
        (done,) = fill_stores(
            lineage, {"object": address.replace("&v1=e1", column)}, version="newest"
        )
        assert filled(address) == {i: NEW[i].tobytes() for i in range(rows)}
        if column == "&v1=e1":
            lineage.withdraw(1, "a sample")
    assert (done.rows, done.held) == (PUBLISHED - 20, {2: PUBLISHED})


@pytest.mark.parametrize(
    "kind", ["pgvector-table", pytest.param("lance-table", marks=pytest.mark.long)]
)
def test_killed_again_and_again_it_loses_nothing(kind: str, tmp_path: Path) -> None:
    said = killed(kind, tmp_path, 10)
    assert said["moments"] > 2


@pytest.mark.long
@pytest.mark.parametrize("kind", ["pgvector-table", "lance-table"])
def test_killed_two_hundred_times_nothing_is_lost_or_written_twice(
    kind: str, tmp_path: Path
) -> None:
    said = killed(kind, tmp_path, 200)
    assert said["moments"] > 20
    assert said["rounds"] > 3


def killed(kind: str, folder: Path, times: int) -> dict[str, int]:
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_column", str(folder), kind, str(times)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    said: dict[str, int] = json.loads(process.stdout)
    assert said["kills"] >= times
    return said
