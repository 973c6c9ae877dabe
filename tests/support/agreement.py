"""Whether a store and the oracle say the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.stores.store import Floats, Hits, Rows, Store

Id: TypeAlias = int | str


def as_dict(parts: Iterable[Rows]) -> dict[Id, tuple[int, bytes]]:
    """Id to version and vector, each id once."""
    pairs = [
        (key, (rows.version, vector.tobytes()))
        for rows in parts
        for key, vector in zip(rows.ids.to_pylist(), rows.vectors, strict=True)
    ]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def same_rows(store: Store, oracle: Store) -> None:
    """Everything that is in them, read in each of the ways there are, bit by bit."""
    there = as_dict(oracle.scan())
    assert as_dict(store.scan()) == there
    assert as_dict(store.scan(size=3)) == there
    assert as_dict(store.fetch(pa.array(list(there), store.id_type))) == there
    assert store.count() == oracle.count()
    assert store.filled() == oracle.filled()
    assert store.spaces() == oracle.spaces()
    for version in oracle.spaces():
        assert as_dict(store.scan(version)) == as_dict(oracle.scan(version))


def same_hits(
    store: Store,
    oracle: Store,
    queries: Mapping[int, Floats],
    k: int,
    *,
    offsets: Mapping[int, Floats] | None = None,
    ids: Sequence[Id] | None = None,
) -> list[Hits]:
    """The best k by both: the same scores, and the same rows but where scores are equal."""
    results = store.search(queries, k, offsets=offsets, ids=ids)
    compared = store.search(queries, k, offsets=offsets, ids=ids, exact=True)
    assert len(compared) == len(results)
    for hits, others in zip(compared, results, strict=True):
        close(hits.scores, others.scores)
    truth = oracle.search(queries, k, offsets=offsets, ids=ids)
    assert len(results) == len(truth)
    everything = oracle.search(queries, 1 << 20, offsets=offsets, ids=ids)
    for hits, best, whole in zip(results, truth, everything, strict=True):
        assert len(hits) == len(best)
        assert (np.diff(hits.scores) <= 0).all()
        close(hits.scores, best.scores)
        scores = {
            key: (score, version)
            for key, score, version in zip(
                whole.ids.to_pylist(), whole.scores, whole.versions, strict=True
            )
        }
        assert len(set(hits.ids.to_pylist())) == len(hits)
        for key, score, version in zip(
            hits.ids.to_pylist(), hits.scores, hits.versions, strict=True
        ):
            assert version == scores[key][1]
            close(score, scores[key][0])
    return results


def close(actual: Any, truth: Any) -> None:
    np.testing.assert_allclose(actual, truth, rtol=1e-4, atol=1e-4)


def scores_of(metric: str, queries: Any, rows: Any) -> npt.NDArray[np.float64]:
    """Return scores [Q, n] in float64; the cosine of a vector of length 0 is 0."""
    queries, rows = np.asarray(queries, np.float64), np.asarray(rows, np.float64)
    if metric == "l2":
        distances: npt.NDArray[np.float64] = ((queries[:, None] - rows[None]) ** 2).sum(-1)
        return -distances
    products: npt.NDArray[np.float64] = queries @ rows.T
    if metric == "cosine":
        lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(rows, axis=1)
        np.divide(products, lengths, out=products, where=lengths > 0)
    return products
