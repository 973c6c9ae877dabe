"""Writers that are killed while they write to a store of any kind that survives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np

from evergram.stores.open_store import open_store
from evergram.stores.store import Space

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
        with open_store(address) as store:
            # Every batch up to the last that was told is there as written, or as the one under way.
            for i in range(max(0, last - 49), last + 1):
                parts = store.fetch(np.arange(20) + 20 * (i % 50))
                assert sum(map(len, parts)) == 20
                for part in parts:
                    assert set(np.unique(part.vectors)) <= {i, i + 50 if i + 50 == last + 1 else i}
            store.delete(range(1000))
            assert store.count() == {}
