"""Search in a table that holds vectors alone, by a comparison with all rows.

An inner product at version j is one with the stored vector: ⟨q, A z + b⟩ = ⟨Aᵀq, z⟩ + ⟨q, b⟩.
Cosine and distance also need ‖A z + b‖, which Evergram's own stores keep beside each row and a
table does not have. At the version of the rows the database computes it; at any other the rows are
read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError
from evergram.retrieval.metric_search import Ids
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.store import Floats, Hits, Rows, merge_hits

# Rows that one search may read here, and how many at once.
MOST_READ = 200_000
BLOCK = 8_192


def search_adopted(
    view: AdoptedStore,
    versions: Sequence[int],
    maps: VersionMaps,
    target: int,
    queries: Floats,
    k: int,
    metric: str,
    ids: Ids,
) -> list[Hits]:
    """Return the k best rows for each query [Q, D_j] of version `target`, all rows compared.

    Args:
        versions: that have rows.
        metric: "ip", "l2" or "cosine".
        ids: search among these alone.
    Raises: LineageError: a transform on the way is not affine. DataError: too many rows would have
        to be read; a query has length 0 and so no cosine.
    """
    if metric == "cosine" and not queries.any(axis=1).all():
        raise DataError("A query has length 0, so it has no cosine; give another.")
    among = None if ids is None else pc.unique(view.as_ids(ids))
    parts = []
    for version in versions:
        if metric == "ip":
            turned, offset = maps.affine(version, target).queries(queries)
            offsets = None if offset is None else {version: offset}
            parts.append(view.search({version: turned}, k, offsets=offsets, ids=among))
        elif version == target:
            parts.append(view.nearest_by(metric, version, queries, k, among))
        else:
            parts.append(_by_reading(view, version, maps, target, queries, k, metric, among))
    return [merge_hits(of_query, k) for of_query in zip(*parts, strict=True)]


def _by_reading(
    view: AdoptedStore,
    version: int,
    maps: VersionMaps,
    target: int,
    queries: Floats,
    k: int,
    metric: str,
    ids: pa.Array | None,
) -> list[Hits]:
    """Return the k best rows of one version, each read here as version `target`."""
    rows = view.count().get(version, 0) if ids is None else len(ids)
    if rows > MOST_READ:
        raise DataError(
            f"A search by {metric} at version {target} would read {rows} rows of version {version} "
            f"from {view.address}, as their lengths at version {target} are not in the table, and "
            f"one search reads {MOST_READ} at most: search by ip, among fewer rows by a filter or "
            "by ids, or at the rows' own version, or fill a store of Evergram's, which has the "
            "lengths."
        )
    asked = queries.astype(np.float64)
    nothing = Hits(pa.array([], view.id_type), np.zeros(0, np.float32), np.zeros(0, np.int64))
    best = [nothing] * len(queries)
    for block in _blocks(view, version, ids):
        read = maps.rows(block.vectors, version, target).astype(np.float64)
        for i, scores in enumerate(_scores(metric, asked, read)):
            first = np.argsort(-scores, kind="stable")[:k]
            hits = Hits(
                block.ids.take(pa.array(first)),
                scores[first].astype(np.float32),
                np.full(len(first), version, dtype=np.int64),
            )
            best[i] = merge_hits([best[i], hits], k)
    return best


def _blocks(view: AdoptedStore, version: int, ids: pa.Array | None) -> Iterator[Rows]:
    if ids is None:
        yield from view.scan(version, BLOCK)
        return
    for start in range(0, len(ids), BLOCK):
        for rows in view.fetch(ids.slice(start, BLOCK)):
            if rows.version == version:
                yield rows


def _scores(
    metric: str, queries: npt.NDArray[np.float64], read: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the scores [Q, n] of queries [Q, D] with rows [n, D]."""
    products = queries @ read.T
    squares = (read**2).sum(axis=1)
    if metric == "l2":
        distances = 2 * products - squares - (queries**2).sum(axis=1)[:, None]
        nearest: npt.NDArray[np.float64] = np.minimum(distances, 0.0)
        return nearest
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.sqrt(squares)
    cosines: npt.NDArray[np.float64] = np.divide(
        products, lengths, out=np.zeros_like(products), where=lengths > 0
    )
    return cosines
