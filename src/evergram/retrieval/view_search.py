"""Search in a store as it is at one moment, whoever writes it.

In a table that holds vectors alone, an inner product at version j is one with the stored vector:
⟨q, A z + b⟩ = ⟨Aᵀq, z⟩ + ⟨q, b⟩. Cosine and distance also need ‖A z + b‖, which Evergram's own
stores keep beside each row and a table does not have. At the version of the rows the database
computes it, if it knows the metric; otherwise the rows are read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, LineageError
from evergram.retrieval.metric_search import (
    Field,
    Ids,
    by_cosine,
    by_distance,
    by_inner_product,
    near_by_cosine,
)
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.adopted_scores import best_by
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.store import Floats, Hits, Rows, StoreView, merge_hits

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
        if metric == "ip" and view.computes("ip", version):
            turned, offset = maps.affine(version, target).queries(queries)
            offsets = None if offset is None else {version: offset}
            parts.append(view.search({version: turned}, k, offsets=offsets, ids=among))
        elif version == target and view.computes(metric, version):
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
        raise _too_many(view, version, target, metric, rows)
    read = (
        Rows(version, block.ids, maps.rows(block.vectors, version, target))
        for block in _blocks(view, version, ids)
    )
    results = best_by(metric, queries, k, read, version, view.id_type)
    for hits in results:
        view.refuse_twice_in(hits.ids)
    return results


def _too_many(view: AdoptedStore, version: int, target: int, metric: str, rows: int) -> DataError:
    cheap = "by ip, " if view.computes("ip", version) else ""
    why = f"as their lengths at version {target} are not in the table"
    if not view.computes(metric, version):
        why = f"as its own searches of that version are not by {metric}"
    return DataError(
        f"A search by {metric} at version {target} would read {rows} rows of version {version} "
        f"from {view.address}, {why}, and one search reads {MOST_READ} at most: search {cheap}"
        "among fewer rows by a filter or by ids, or by a metric that the database itself computes "
        "at the rows' own version, or fill a store of Evergram's, which has the lengths."
    )


def _blocks(view: AdoptedStore, version: int, ids: pa.Array | None) -> Iterator[Rows]:
    if ids is None:
        yield from view.scan(version, BLOCK)
        return
    for start in range(0, len(ids), BLOCK):
        for rows in view.fetch(ids.slice(start, BLOCK)):
            if rows.version == version:
                yield rows


SEARCHES = {"ip": by_inner_product, "l2": by_distance, "cosine": by_cosine}
# For hits that are ranked anew.
PROPOSALS = {**SEARCHES, "cosine": near_by_cosine}


def search_view(
    view: StoreView,
    maps: VersionMaps,
    target: int,
    queries: Floats,
    k: int,
    metric: str,
    ids: Ids,
    versions: Sequence[int] | None = None,
    *,
    proposals: bool = False,
) -> list[Hits]:
    """Return the k best rows of a view for each query [Q, D_j] of version `target`.

    Args:
        metric: "ip", "l2" or "cosine".
        ids: search among these alone.
        versions: search among rows of these alone; None is all.
        proposals: whether the hits are ranked anew, so that they need not be quite the best, and
            their scores mean nothing.
    Raises: LineageError: a transform on the way is not affine; or the store was never filled.
    """
    filled = view.filled()
    if not filled and not view.spaces() and not isinstance(view, AdoptedStore):
        raise LineageError(
            f"{view.address} was never filled; 'evergram store fill' or fill(lineage, "
            "store, side) fills it."
        )
    if versions is not None:
        filled = {version: filled[version] for version in versions if version in filled}
    if not filled:
        nothing = Hits(pa.array([], view.id_type), np.zeros(0, np.float32), np.zeros(0, np.int64))
        return [nothing for _ in queries]
    if isinstance(view, AdoptedStore):
        return search_adopted(view, list(filled), maps, target, queries, k, metric, ids)
    fields = [
        Field(view, maps, version, target, maps.dim(version), space.dim)
        for version, space in filled.items()
    ]
    return (PROPOSALS if proposals else SEARCHES)[metric](fields, queries, k, ids)
