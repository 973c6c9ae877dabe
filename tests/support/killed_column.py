"""A program: fill a column of a table of one's own and empty it, killed again and again, and look
at everything in between; prints what it found.

    python -m tests.support.killed_column FOLDER KIND KILLS

KIND is pgvector-table or lance-table. Half of the kills are at an operation on a file of the
backfill, half at a moment drawn at random, mostly within a request to the database.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.dying import die_at, in_a_fork
from tests.support.lineages import lineage_of, vectors_of
from tests.support.own_tables import contents, own_store, rows_of_lance
from tests.support.postgres_server import postgres

from evergram.retrieval.backfill import Backfill
from evergram.retrieval.reader import Reader
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.open_store import open_store

ROWS, BATCH, BARE = 240, 8, range(230, 240)
OLD, NEW = vectors_of(0, ROWS).numpy(), vectors_of(1, ROWS).numpy()
# Of version 1, as its transform reads them.
AS_OLD = NEW[:, :6] / 2 + np.float32(0.1)
# Operations on files before a process is killed, at most; and seconds.
OPERATIONS, SECONDS = 90, {"pgvector-table": 0.4, "lance-table": 1.5}
# Every update of a row, and whether its cell is filled then.
TRIGGER = """
    create table writes (number bigserial, id bigint, filled boolean);
    create function note() returns trigger language plpgsql as $$ begin
      insert into writes (id, filled)
      values (new.id, coalesce(to_jsonb(new) -> 'e1', 'null') <> 'null'); return new;
    end $$;
    create trigger noted after update on {table} for each row execute function note();
"""


def forked(work: Callable[[], Iterable[Any]]) -> tuple[list[Any], bool]:
    """Return what a fork has yielded, and whether it was killed. The clients of databases have
    threads, so this process opens none. Raises: RuntimeError: it failed by itself."""

    def write(writing: int) -> None:
        for one in work():
            os.write(writing, json.dumps(one).encode() + b"\n")

    answer, status = in_a_fork(write)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGALRM)
    if status and not killed:
        raise RuntimeError("the work failed by itself")
    return [json.loads(line) for line in answer.splitlines()], killed


class OwnTable:
    """The table, and what was in it at first."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.lineage = lineage_of(folder / "line", 2, ROWS, canaries=2)
        if kind == "pgvector-table":
            postgres()  # of this process, not of a fork
        else:
            # What the client imports, but no thread of it: each fork would take seconds.
            for module in ("pandas", "pyarrow.dataset", "pyarrow.substrait", "lance_namespace"):
                import_module(module)
        ((address, self.before), _) = forked(self.make)
        self.address = str(address)

    def make(self) -> Iterator[str]:
        address = own_store(self.kind, self.folder / "own", ROWS, {0: range(BARE.start)})
        if self.kind == "pgvector-table":
            table = address.partition("#table=")[2].partition("&")[0]
            postgres().sql(TRIGGER.format(table=table))
        self.address = address.replace("&v0=e0", "&v0=e0&v1=e1")
        yield self.address
        yield self.others()

    def others(self) -> str:
        """Return all of the table but the new column, as it is stored."""
        rows = contents(self.address)
        return repr([{k: v for k, v in rows[i].items() if k != "e1"} for i in sorted(rows)])

    def step(self, what: str, seconds: float = 0.0, operations: int = 0) -> Iterator[list[int]]:
        """Check everything, then do a step of a backfill, and die in it after so many seconds or
        operations on files."""
        if what != "plan":
            yield self.check()
        with open_store(self.address) as store:
            work = Backfill(self.lineage, store, "object")
            if operations:
                die_at(operations, self.folder)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            work.plan(BATCH) if what == "plan" else getattr(work, what)()
            signal.setitimer(signal.ITIMER_REAL, 0)

    def at_the_end(self) -> Iterator[Any]:
        assert self.others() == self.before
        assert "e1" not in next(iter(contents(self.address).values())), "the column is still there"
        yield self.writes()

    def check(self) -> list[int]:
        """Check what holds at every moment. Returns: rows filled, and rows acknowledged."""
        assert self.others() == self.before, "something else than the new column was changed"
        cells = {key: row.get("e1") for key, row in contents(self.address).items()}
        filled = {key for key, cell in cells.items() if cell is not None}
        assert all(cells[key] == NEW[key].tobytes() for key in filled), "a wrong vector"
        with open_store(self.address) as store:
            assert isinstance(store, AdoptedStore)
            work = Backfill(self.lineage, store, "object")
            status = work.status()
            order = work.order()[0].to_pylist()
            if status.state != "rolling back":
                assert filled >= set(order[: status.refreshed]), "an acknowledged row was lost"
            noted = {key for _, ids in store.journal(1) for key in ids.to_pylist()}
            assert filled <= noted, "a cell could not be emptied"
            self.read(Reader(self.lineage, {"object": store}), filled)
        return [len(filled), status.refreshed]

    def read(self, reader: Reader, filled: set[int]) -> None:
        read = reader.embed(list(range(ROWS)), 0)
        for key, (source, vector) in enumerate(zip(read.sources, read.vectors, strict=True)):
            assert source == (1 if key in filled else -1 if key in BARE else 0)
            expected = AS_OLD[key] if source == 1 else OLD[key]
            assert source < 0 or np.allclose(vector, expected, atol=1e-5), "a row is read wrongly"
        (hits,) = reader.search(np.ones(6, np.float32), ROWS, 0)
        assert len(hits) == ROWS - len(set(BARE) - filled), "a row is not found"

    def writes(self) -> int:
        """Return how many cells were written; each was once, between being emptied."""
        if self.kind == "pgvector-table":
            rows = postgres().sql("select id, filled from writes order by number")
        else:
            rows = self.commits()
        now: dict[Any, bool] = {}
        for key, filled in rows:
            assert now.get(key, False) is not filled, "a cell was written twice"
            now[key] = bool(filled)
        assert not any(now.values())
        return sum(bool(filled) for _, filled in rows)

    def commits(self) -> list[tuple[object, ...]]:
        """Return the cells that each version of the table changed."""
        import lancedb

        table = lancedb.connect(self.folder / "own").open_table("mine")
        before: dict[int, Any] = {}
        changes: list[tuple[object, ...]] = []
        for version in range(1, table.version + 1):
            table.checkout(version)
            now = {key: row.get("e1") for key, row in rows_of_lance(table.to_arrow()).items()}
            changes += [(k, now[k] is not None) for k in now if now[k] != before.get(k)]
            before = now
        return changes


def main(folder: Path, kind: str, kills: int) -> None:
    table, draw = OwnTable(folder, kind), random.Random(len(kind))
    happened, rounds, what = 0, 0, "plan"
    seen: set[int] = set()
    while happened < kills or what != "plan":
        timed, share = draw.random() < 0.5, draw.random()
        limits = (share * SECONDS[kind], 0) if timed else (0.0, 1 + int(share * OPERATIONS))
        if what == "plan" or happened >= kills:
            limits = 0.0, 0
        said, killed = forked(partial(table.step, what, *limits))
        happened += killed
        seen.update(filled for filled, _ in said)
        if not killed:
            rounds += what == "rollback"
            what = {"plan": "apply", "apply": "rollback", "rollback": "plan"}[what]
    ((writes,), _) = forked(table.at_the_end)
    assert writes >= ROWS * rounds
    result = {"kills": happened, "moments": len(seen), "rounds": rounds, "writes": writes}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
