"""Vectors in clusters, as embeddings are, and how many of the best a store finds among them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evergram.stores.store import Floats, Store


def planted(count: int = 5_000, dim: int = 32) -> tuple[Floats, Floats]:
    """Vectors [count, dim] around 100 centres, and 40 queries near some of them."""
    random = np.random.default_rng(7)
    centres = random.normal(size=(100, dim))

    def around(n: int) -> Floats:
        near = centres[random.integers(0, 100, n)] + 0.5 * random.normal(size=(n, dim))
        return near.astype(np.float32)

    return around(count), around(40)


def recall(
    store: Store,
    version: int,
    vectors: Floats,
    queries: Floats,
    k: int,
    ids: npt.NDArray[np.int64] | None = None,
) -> float:
    """Share of the true k best that are found; ids are positions in `vectors`. Every score
    must be the true one."""
    scores = queries @ vectors.T
    allowed = np.arange(len(vectors)) if ids is None else ids
    results = store.search({version: queries}, k, ids=None if ids is None else ids.tolist())
    hit = 0
    for hits, row in zip(results, scores, strict=True):
        keys = hits.ids.to_numpy()
        np.testing.assert_allclose(hits.scores, row[keys], rtol=1e-4, atol=1e-4)
        assert (np.diff(hits.scores) <= 0).all()
        best = allowed[np.argsort(-row[allowed])[:k]]
        hit += len(np.intersect1d(keys, best))
    return hit / (k * len(queries))
