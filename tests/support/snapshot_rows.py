"""Rows of one space for snapshots, and the files of a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Floats, Rows, Space

SPACE = Space(0, 8, "sha256:0")


def vectors(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)


def rows(first: int, count: int, seed: int = 0) -> Rows:
    return Rows(0, pa.array(range(first, first + count)), vectors(count, seed))


def files(store: SnapshotStore) -> list[str]:
    folder = Path(store.address.removeprefix("snapshot:")) / "segments"
    return sorted(path.name for path in folder.iterdir())
