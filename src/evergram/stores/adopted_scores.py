"""Scores by any metric of rows that were read: the slow way, and the exact one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.stores.rows import Floats, Hits, Rows

Doubles = npt.NDArray[np.float64]


def scores_by(metric: str, queries: Doubles, vectors: Doubles) -> Doubles:
    """Return the scores [Q, n] of queries [Q, D] with vectors [n, D]; a vector of zeros has the
    cosine 0.

    Args:
        metric: "ip", "cosine", or "l2", −‖q − z‖².
    """
    products: Doubles = queries @ vectors.T
    if metric == "ip":
        return products
    squares = (vectors**2).sum(axis=1)
    if metric == "l2":
        distances = 2 * products - squares - (queries**2).sum(axis=1)[:, None]
        nearest: Doubles = np.minimum(distances, 0.0)
        return nearest
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.sqrt(squares)
    cosines: Doubles = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return cosines


def best_by(
    metric: str, queries: Floats, k: int, blocks: Iterable[Rows], version: int, id_type: pa.DataType
) -> list[Hits]:
    """Return for each query of [Q, D] the k best rows of some blocks, all of them compared; among
    rows of one score the first. An id that is twice may be twice among them.

    Args:
        version: that the hits are of.
    """
    asked = queries.astype(np.float64)
    keys = [pa.array([], id_type)] * len(queries)
    best = [np.zeros(0)] * len(queries)
    for rows in blocks:
        for i, scores in enumerate(scores_by(metric, asked, rows.vectors.astype(np.float64))):
            first = _largest(scores, k)
            joined = np.concatenate([best[i], scores[first]])
            order = np.argsort(-joined, kind="stable")[:k]
            keys[i] = pa.concat_arrays([keys[i], rows.ids.take(pa.array(first))]).take(
                pa.array(order)
            )
            best[i] = joined[order]
    # A score beyond float32 is infinite, which is no error of the program.
    with np.errstate(over="ignore"):
        return [
            Hits(ids, scores.astype(np.float32), np.full(len(ids), version, np.int64))
            for ids, scores in zip(keys, best, strict=True)
        ]


def _largest(scores: Doubles, k: int) -> npt.NDArray[np.intp]:
    """Return the places of the k largest scores in the order of the rows, and of all that are equal
    to the k-th."""
    if len(scores) <= k:
        return np.arange(len(scores))
    return np.flatnonzero(scores >= np.partition(scores, -k)[-k])
