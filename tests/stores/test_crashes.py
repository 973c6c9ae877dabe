"""Killed writers, threads that write at once, damaged files: no store loses a row that it has
acknowledged, or gives out a wrong one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import as_dict, same_hits, same_rows
from tests.support.store_kinds import STORES
from tests.support.store_pairs import NEW, OLD, Pair

from evergram.errors import IntegrityError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.rows import Rows, Space
from evergram.stores.store import Store
from evergram.stores.table_per_version import TablePerVersionStore

FILES = {"lance": "{}#emb", "qdrant": "{}#emb", "sqlite": "{}/emb.db#emb"}


def address_of(kind: str, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return f"{kind}:{FILES[kind].format(folder)}"


THREADS = 8
ROUNDS = 6
EACH = 20


def work_together(store: Store) -> None:
    """Each thread owns some ids and moves them between two spaces; nobody ever sees a row that
    was not written, and each thread sees its own rows as it left them."""
    dims = {10: 6, 11: 9}
    for version, dim in dims.items():
        store.add_space(Space(version, dim, f"sha256:{version}"))

    def vectors(ids: range, version: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        # What a row is follows from its id and version, so anybody can tell a wrong one.
        steps = np.arange(dims[version], dtype=np.float32)
        return np.asarray(ids, dtype=np.float32)[:, None] + version * steps

    def expect(blocks: list[Rows], version: int | None = None) -> int:
        for rows in blocks:
            if rows.version not in dims:
                continue
            keys = rows.ids.to_pylist()
            np.testing.assert_array_equal(rows.vectors, vectors(keys, rows.version))
            assert version in (None, rows.version)
        return sum(map(len, blocks))

    def work(owner: int) -> None:
        own = range(1000 + owner * EACH, 1000 + (owner + 1) * EACH)
        everything = range(1000, 1000 + THREADS * EACH)
        for i in range(ROUNDS):
            version = 10 + (i + owner) % 2
            store.upsert(Rows(version, pa.array(own, pa.int64()), vectors(own, version)))
            assert expect(store.fetch(own), version) == EACH
            expect(store.fetch(everything))
            query = {v: np.ones((2, d), dtype=np.float32) for v, d in dims.items()}
            for hits in store.search(query, 5):
                assert len(hits) == 5
                assert len(set(hits.ids.to_pylist())) == 5

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, owner) for owner in range(THREADS)]:
            done.result()
    counts = store.count()
    assert counts.get(10, 0) + counts.get(11, 0) == THREADS * EACH


@pytest.mark.parametrize(
    "kind",
    ["pgvector", *(pytest.param(k, marks=pytest.mark.long) for k in ("snapshot", *FILES))],
)
def test_threads_work_together(kind: str, tmp_path: Path) -> None:
    with STORES[kind](tmp_path, "int64") as store:
        work_together(store)


WRITER = """
import sys
import numpy as np, pyarrow as pa
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows
with open_store(sys.argv[1]) as store:
    for i in range(100_000):
        ids = np.arange(20) + 20 * (i % 50)
        store.upsert(Rows(i % 2, pa.array(ids), np.full((20, 4 - i % 2), i, dtype=np.float32)))
        print(i, flush=True)
"""


def kill_writers(address: str) -> None:
    """Assert that a new store loses no row whose write has returned."""
    with open_store(address, create="int64") as store:
        store.add_space(Space(0, 4, "sha256:zero"))
        store.add_space(Space(1, 3, "sha256:one"))
    for pause in (0.07, 0.2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, address], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(pause)
        os.kill(writer.pid, signal.SIGKILL)
        last = int((first + writer.communicate()[0]).split("\n")[-2])
        with open_store(address, create="int64") as store:
            # Every batch up to the last that was told is there as written, or as the one under way.
            for i in range(max(0, last - 49), last + 1):
                parts = store.fetch(np.arange(20) + 20 * (i % 50))
                assert sum(map(len, parts)) == 20
                for part in parts:
                    assert set(np.unique(part.vectors)) <= {i, i + 50 if i + 50 == last + 1 else i}
            store.delete(range(1000))
            assert store.count() == {}


@pytest.mark.long
@pytest.mark.parametrize("kind", FILES)
def test_no_acknowledged_row_is_lost_when_the_writer_is_killed(kind: str, tmp_path: Path) -> None:
    kill_writers(address_of(kind, tmp_path / "killed"))


@pytest.mark.long
@pytest.mark.parametrize("kind", FILES)
def test_no_wrong_vector_comes_out_of_a_damaged_folder(kind: str, tmp_path: Path) -> None:
    """A bit of a file is flipped: an error, or a row that is missed, but never a wrong vector."""
    folder = tmp_path / kind
    address = address_of(kind, folder)
    vectors = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    with open_store(address, create="int64") as store:
        store.add_space(Space(0, 8, "sha256:zero"))
        store.add_space(Space(1, 6, "sha256:one"))
        store.upsert(Rows(0, pa.array(range(200)), vectors))
        store.upsert(Rows(1, pa.array(range(100, 130)), vectors[:30, :6].copy()))
        written = as_dict(store.scan())
        store.delete(range(10))
        truth = as_dict(store.scan())
    # Lance has no checksum of which rows are removed: one may come back, as it was.
    allowed = written if kind == "lance" else truth
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
    chance = random.Random(0)
    errors = 0
    for _ in range(100):
        file = chance.choice(files)
        whole = file.read_bytes()
        place = chance.randrange(len(whole))
        flipped = whole[place] ^ 1 << chance.randrange(8)
        file.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        try:
            with open_store(address) as store:
                fetched = as_dict(store.fetch(range(200)))
            assert fetched.items() <= allowed.items()
        except (StoreError, IntegrityError):
            errors += 1
        file.write_bytes(whole)
    assert errors
    with open_store(address) as store:
        assert as_dict(store.scan()) == truth


# A writer that is killed between its two steps, or within one transaction, as SQLite's is.


@pytest.fixture(params=FILES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    both = Pair(lambda: STORES[request.param](tmp_path, "int64"), "int64").fill()
    yield both
    both.store.close()


def killed(pair: Pair, monkeypatch: pytest.MonkeyPatch, rows: Rows) -> bool:
    """Move rows, killed before they are removed from where they were. Returns: whether they were
    written, in one of two steps."""

    def die(*_: Any) -> None:
        raise StoreError("killed")

    with monkeypatch.context() as during:
        during.setattr(type(pair.store), "_remove", die)
        with pytest.raises(StoreError, match="killed"):
            pair.store.upsert(rows)
    pair.reopen()
    return isinstance(pair.store, TablePerVersionStore)


def moved(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> bool:
    rows = pair.rows(NEW.version, pair.names(range(15)))
    if not killed(pair, monkeypatch, rows):
        return False
    pair.oracle.upsert(rows)
    assert sum(pair.store.count().values()) > sum(pair.oracle.count().values())
    return True


def test_only_the_later_row_of_an_id_is_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(pair, monkeypatch)
    there = as_dict(pair.oracle.scan())
    assert as_dict(pair.store.scan()) == there
    assert as_dict(pair.store.scan(OLD.version, size=2)) == as_dict(pair.oracle.scan(OLD.version))
    assert as_dict(pair.store.fetch(pair.names(range(40)))) == there
    queries = pair.queries()
    # Of the old version alone, the rows that were moved are gone: they are of the new one.
    for asked in (queries, {OLD.version: queries[OLD.version]}):
        for k in (1, 3, 7, 100):
            same_hits(pair.store, pair.oracle, asked, k)
        same_hits(pair.store, pair.oracle, asked, 3, ids=pair.names(range(10, 25)))
    for store in pair.both:
        store.delete(pa.array(pair.names(range(12)), store.id_type))
    assert as_dict(pair.store.scan()) == as_dict(pair.oracle.scan())
    same_hits(pair.store, pair.oracle, queries, 40)


@pytest.mark.parametrize("how", ["remove_superseded", "written again"])
def test_it_is_repaired(pair: Pair, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    two_steps = moved(pair, monkeypatch)
    if how == "written again":
        pair.upsert(pair.rows(NEW.version, pair.names(range(15))))
        two_steps = False
    assert pair.store.remove_superseded() == (15 if two_steps else 0)
    same_rows(pair.store, pair.oracle)
    assert pair.store.remove_superseded() == 0
    pair.reopen()
    same_rows(pair.store, pair.oracle)


def test_a_row_that_was_to_move_back_stays_in_the_later_version(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = as_dict(pair.store.scan())
    back = pair.rows(OLD.version, pair.names(range(30, 35)))
    killed(pair, monkeypatch, back)
    assert as_dict(pair.store.scan()) == before
    same_hits(pair.store, pair.oracle, pair.queries(), 40)
    pair.upsert(back)
    same_rows(pair.store, pair.oracle)


def test_a_row_that_moves_back_while_tables_are_read_is_met_the_second_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(pair.store, TablePerVersionStore):
        return
    store, key = pair.store, pair.names([35])
    back = pair.rows(OLD.version, key)
    get, met = type(store)._get, list[int]()

    def get_and_move(self: Any, version: int, ids: pa.Array) -> Any:
        found = list(get(self, version, ids))
        met.append(version)
        if met == [OLD.version]:
            pair.opened_again().upsert(back)
        return iter(found)

    with monkeypatch.context() as during:
        during.setattr(type(store), "_get", get_and_move)
        assert [rows.version for rows in store.fetch(key)] == [OLD.version]
        again = len(met)
        # Ids that are found are not looked for again.
        store.fetch(key)
        assert len(met) == again + 2
