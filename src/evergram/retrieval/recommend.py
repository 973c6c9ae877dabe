"""The best candidates for known queries, without those of their training pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from evergram.data.pair_hash import PairHash
from evergram.errors import DataError, LineageError
from evergram.lineage.pair_history import PairHistory
from evergram.stores.rows import check_k
from evergram.stores.store import Floats, Hits

if TYPE_CHECKING:
    from evergram.retrieval.reader import Reader, Version

QUERY, CANDIDATE = "query", "candidate"
# Candidates that are looked up for each one asked for at first, and at least.
WIDER, LEAST = 2, 32


def recommend(
    reader: Reader,
    ids: pa.Array | Sequence[int | str],
    k: int,
    version: Version,
    *,
    exclude_seen: bool,
) -> list[Hits]:
    """Return the k candidates with the largest inner product for each query.

    It is `Reader.recommend`, whose arguments, result and errors it has.
    """
    check_k(k)
    lineage = reader.lineage
    if not {QUERY, CANDIDATE} <= set(reader.sides):
        raise LineageError(
            f"{lineage} has the sides {', '.join(reader.sides)}; candidates are recommended to "
            "queries, so a lineage whose models were trained is needed. Use search() for objects."
        )
    target = lineage.resolve(version)
    queries = reader.embed(ids, target, QUERY)
    if len(queries.missing):
        raise DataError(
            f"{len(queries.missing)} of {len(queries.ids)} queries are not stored; the first is "
            f"{queries.missing[0].as_py()!r}. Leave them out, or encode() them and search()."
        )
    if not exclude_seen:
        return reader.search(queries.vectors, k, target, CANDIDATE, "ip")
    history = lineage.pair_history
    if history.untested is not None or history.salt is None:
        raise LineageError(
            f"The pairs that {lineage} was trained on are not recorded, so those that were seen "
            "cannot be left out: give exclude_seen=False, and leave them out yourself."
        )
    return _unseen(reader, queries.ids, queries.vectors, k, target, history)


def _unseen(
    reader: Reader, ids: pa.Array, vectors: Floats, k: int, target: int, history: PairHistory
) -> list[Hits]:
    """Return k candidates that each query was not trained with, by wider and wider searches."""
    stored = sum(reader.store(CANDIDATE, target).count().values())
    best: list[Hits] = [Hits(pa.array([]), np.zeros(0, np.float32), np.zeros(0, np.int64))] * len(
        ids
    )
    waiting = list(range(len(ids)))
    width = max(LEAST, WIDER * k)
    while waiting:
        results = reader.search(vectors[waiting], min(width, stored) or 1, target, CANDIDATE, "ip")
        for place, hits in zip(waiting, results, strict=True):
            best[place] = _without_seen(hits, ids[place], history).first(k)
        waiting = [place for place in waiting if len(best[place]) < k]
        if width >= stored:
            break
        width *= 4
    return best


def _without_seen(hits: Hits, query: pa.Scalar, history: PairHistory) -> Hits:
    if not len(hits):
        return hits
    assert history.salt is not None
    pairs = PairHash(history.salt).of_pairs(pa.repeat(query, len(hits)), hits.ids)
    return hits.where(~history.trained.has(pairs))
