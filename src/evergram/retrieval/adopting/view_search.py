"""Search in a store as it is at one moment, whoever writes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from evergram.errors import LineageError
from evergram.retrieval.adopting.adopted_search import search_adopted
from evergram.retrieval.metric_search import (
    Field,
    Ids,
    by_cosine,
    by_distance,
    by_inner_product,
    near_by_cosine,
)
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.store import Floats, Hits, StoreView

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
