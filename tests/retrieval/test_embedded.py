"""Embeddings as they are returned: from which version each came, and which are not stored."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from evergram.retrieval.embedded import Embedded


def test_each_source_is_counted_and_missing_ids_are_named() -> None:
    sources = np.array([2, -1, 1, 2], dtype=np.int64)
    embedded = Embedded(0, pa.array([7, 8, 9, 7]), np.zeros((4, 3), np.float32), sources)
    assert embedded.counts == {2: 2, -1: 1, 1: 1}
    assert embedded.missing.to_pylist() == [8]


def test_one_known_source_is_counted_without_a_look_at_the_rows() -> None:
    ids = pa.array(["a", "b"])
    sources = np.full(2, 3, dtype=np.int64)
    embedded = Embedded(0, ids, np.zeros((2, 1), np.float32), sources, only_source=3)
    assert embedded.counts == {3: 2}
    assert embedded.missing.to_pylist() == []
