"""A program: refresh a snapshot and put it back, killed 200 times at some file operation; prints
what it found.

It runs in a process of its own with one thread, because it forks after torch was loaded.
"""

from __future__ import annotations

import json
import random
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.support.dying import run_until
from tests.support.lineages import lineage_of, vectors_of

from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfill import Backfill
from evergram.retrieval.fill import space_of
from evergram.retrieval.version_maps import VersionMaps, stored_rows
from evergram.stores.open_store import open_store

ROWS, BATCH = 300, 10
# Operations of a process before it is killed, at most; a batch takes about forty.
APPLIED, PUT_BACK = 160, 300


def check(lineage: Lineage, address: str) -> int:
    """Check that every row is there once, as its version wrote it, and refreshed if acknowledged.

    Returns: rows that are acknowledged.
    """
    vectors = {1: vectors_of(1, ROWS).numpy(), 2: vectors_of(2, ROWS).numpy()}
    with open_store(address) as store:
        seen: dict[int, int] = {}
        for rows in store.fetch(range(ROWS)):
            dim = lineage.manifest(rows.version).dim
            keys = rows.ids.to_numpy()
            assert (rows.vectors[:, :dim] == vectors[rows.version][keys]).all(), "a wrong vector"
            seen |= dict.fromkeys(keys.tolist(), rows.version)
        assert len(seen) == ROWS, f"{ROWS - len(seen)} rows were lost"
        assert sum(store.count().values()) == ROWS, "a row is there twice"
        work = Backfill(lineage, store, "object")
        done = work.status().refreshed
        order = work.order()[0].to_pylist()
        assert all(seen[key] == 2 for key in order[:done]), "an acknowledged row was lost"
    return done


def main(folder: Path, kills: int) -> None:
    lineage = lineage_of(folder / "line", rows=ROWS)
    address = str(folder / "store")
    with open_store(address, create="int64") as store:
        space = space_of(lineage, 1)
        rows = stored_rows(
            VersionMaps(lineage), space, pa.array(range(ROWS)), vectors_of(1, ROWS).numpy()
        )
        store.load(space, [rows])
        Backfill(lineage, store, "object").plan(BATCH)

    def run(what: str, pipe: int = -1) -> None:
        with open_store(address) as store:
            work = Backfill(lineage, store, "object")
            work.apply() if what == "apply" else work.rollback()

    draw = random.Random(0)
    happened, seen = 0, []

    def killed(what: str, most: int) -> bool:
        return run_until(draw.randrange(1, most), partial(run, what), folder)[0]

    while happened < kills:
        happened += killed("apply", APPLIED)
        seen.append(check(lineage, address))
        if seen[-1] == ROWS:
            # Back to the start, killed on the way too.
            while killed("rollback", PUT_BACK):
                happened += 1
            with open_store(address, create="int64") as store:
                assert store.count() == {1: ROWS}, "not all rows were put back"
                Backfill(lineage, store, "object").plan(BATCH)
    run("apply")
    sys.stdout.write(
        json.dumps({"kills": happened, "moments": len(set(seen)), "done": check(lineage, address)})
    )
    assert np.diff(seen).max() > 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
