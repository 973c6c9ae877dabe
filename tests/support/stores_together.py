"""Eight threads that write, read and search one store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from evergram.stores.store import Rows, Space, Store

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
