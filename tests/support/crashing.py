"""A store that is killed again and again: `python -m tests.support.crashing FOLDER ID_TYPE KILLS`.

What is done, in which order and with which values follows from the number of the operation, so that
the one who kills knows what must be there after any number of them. Imports no torch: it forks.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from tests.support.dying import run_until

from evergram.stores.snapshot_store import SnapshotStore
from evergram.stores.store import ID_TYPES, Rows, Space, Store

IDS = 400
DIMS = {0: 4, 1: 6}
# Operations on files before a writer is killed, at most: some of its own, of about fifty each.
MOST = 400
# Id to version and the operation that wrote it.
Model: TypeAlias = dict[int, tuple[int, int]]
Open: TypeAlias = Callable[[], Store]


def ids_of(number: int) -> tuple[str, int, list[int]]:
    """What operation `number` does, with which version, to which ids."""
    draw = random.Random(number)
    what = draw.choices(["upsert", "load", "delete"], [7, 2, 1])[0]
    count = 120 if what == "load" else draw.randint(1, 40)
    return what, draw.choice(list(DIMS)), draw.sample(range(IDS), count)


def vector(key: int, version: int, number: int) -> np.ndarray:
    return (np.arange(DIMS[version]) + 1000.0 * key + number).astype(np.float32)


def apply(model: Model, number: int) -> Model:
    what, version, ids = ids_of(number)
    if what == "delete":
        return {key: row for key, row in model.items() if key not in ids}
    return model | dict.fromkeys(ids, (version, number))


def name(key: int, store: Store) -> int | str:
    return key if store.id_type == ID_TYPES["int64"] else f"id-{key}"


def perform(store: Store, number: int) -> None:
    what, version, ids = ids_of(number)
    names = [name(key, store) for key in ids]
    if what == "delete":
        store.delete(names)
        return
    vectors = np.stack([vector(key, version, number) for key in ids])
    rows = Rows(version, pa.array(names, store.id_type), vectors)
    if what == "upsert":
        store.upsert(rows)
    else:
        half = len(ids) // 2
        blocks = [
            Rows(version, rows.ids[:half], vectors[:half]),
            Rows(version, rows.ids[half:], vectors[half:]),
        ]
        store.load(Space(version, DIMS[version], f"sha256:{version}"), blocks)


def work(open_store: Open, number: int, pipe: int) -> None:
    """Operations from `number` on, for ever; each that returned is said so."""
    store = open_store()
    while True:
        perform(store, number)
        os.write(pipe, f"{number}\n".encode())
        number += 1


def is_as(store: Store, model: Model) -> bool:
    """Whether a store holds exactly that, with the values that were written."""
    stored = {}
    for rows in store.scan():
        for key, value in zip(rows.ids.to_pylist(), rows.vectors, strict=True):
            stored[key] = rows.version, value.tobytes()
    wanted = {
        name(key, store): (version, vector(key, version, number).tobytes())
        for key, (version, number) in model.items()
    }
    return stored == wanted


def killed_at_random(open_store: Open, folder: Path, kills: int, seed: int) -> int:
    """Kill a writer so many times, at some operation on a file of the store's folder.

    Returns: how many of its own operations were acknowledged.
    Raises: AssertionError: a row was lost, or is half there.
    """
    draw = random.Random(seed)
    store = open_store()
    for version, dim in DIMS.items():
        store.add_space(Space(version, dim, f"sha256:{version}"))
    model: Model = {}
    done = 0
    for kill in range(kills):
        store.close()
        _, said = run_until(draw.randrange(1, MOST), partial(work, open_store, done), folder)
        for _ in said.splitlines():
            model, done = apply(model, done), done + 1
        store = open_store()
        if not is_as(store, model):
            # Killed between the swap and the word that it was done.
            model, done = apply(model, done), done + 1
            assert is_as(store, model), f"kill {kill} after operation {done}: rows are lost"
        # The next write works, and clears away what was left.
        perform(store, done)
        model, done = apply(model, done), done + 1
        assert is_as(store, model), f"the write after kill {kill} is wrong"
    store.close()
    return done


if __name__ == "__main__":
    folder, id_type, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    acknowledged = killed_at_random(
        lambda: SnapshotStore.open(str(folder), id_type), folder, times, seed=len(id_type)
    )
    sys.stdout.write(f"{acknowledged}\n")
