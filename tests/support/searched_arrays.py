"""Exact search of an array, as a store's search answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from evergram.stores.rows import Floats, Hits


def searched(ids: list[str], vectors: Floats, version: int) -> Callable[[Floats, int], list[Hits]]:
    """Return a search of these rows by inner product."""

    def search(queries: Floats, k: int) -> list[Hits]:
        hits = []
        for scores in queries @ vectors.T:
            best = np.argsort(-scores, kind="stable")[:k]
            best_ids = pa.array([ids[i] for i in best], pa.string())
            hits.append(Hits(best_ids, scores[best], np.full(len(best), version)))
        return hits

    return search
