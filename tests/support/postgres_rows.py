"""Rows for stores in PostgreSQL, and names that no store in it has yet."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa

from evergram.stores.store import Rows

NAMES = (f"store{i}" for i in itertools.count())


def rows(ids: range, version: int = 0, dim: int = 4, value: float = 1.0) -> Rows:
    vectors = np.full((len(ids), dim), value, dtype=np.float32)
    return Rows(version, pa.array(ids, pa.int64()), vectors)
