"""Search a lineage's stored rows, and re-rank the best by a newer version's own vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, ShapeError
from evergram.migration.cascade import DEPTH, KeptVectors
from evergram.retrieval.metric_search import Metric, by_vectors
from evergram.retrieval.reader import Reader, Version
from evergram.stores.filters import Filter
from evergram.stores.rows import Floats, Hits, check_k


class EncodingLimitError(DataError):
    """A search would have more objects encoded than it may."""


@dataclass(frozen=True)
class Reranked:
    """The hits of a search that was re-ranked, and where their vectors came from.

    Args:
        hits: one for each query; `versions` are all the version that was asked for.
        stored, kept, computed: how many of the objects that were re-ranked, each counted once, are
            stored at that version, had a kept vector, or were encoded for this search.
    """

    hits: list[Hits]
    stored: int = 0
    kept: int = 0
    computed: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The three counts by name."""
        return {"stored": self.stored, "kept": self.kept, "computed": self.computed}


def reranked_search(
    reader: Reader,
    queries: npt.ArrayLike,
    kept: KeptVectors,
    k: int = 10,
    version: Version = None,
    *,
    rerank: int = DEPTH,
    side: str | None = None,
    metric: Metric | None = None,
    ids: pa.Array | Sequence[int | str] | None = None,
    filter: Filter | None = None,
    most: int | None = None,
    old_queries: Callable[[int], npt.ArrayLike | None] | None = None,
) -> Reranked:
    """Return the k best of each query by own vectors of a version, of the best by the stored rows.

    The stored rows, most of them of an older version, are searched by `old_queries`, or by the
    queries through the backward transform; the best `rerank` are then ranked by the vectors that
    the version's own model gives them: the stored one where the row has moved already, else a kept
    one, else one that is computed now.
    Once every stored row is of the version, this is `Reader.search`, and nothing is computed.

    Args:
        queries: [Q, D_j] or [D_j], in the space of version j.
        kept: vectors of version j, and its encoder.
        version: j; production by default.
        rerank: hits of each query to re-rank, at least k. What they miss cannot come back.
        side, metric, ids, filter: as for `Reader.search`.
        most: objects that may be encoded; any number by default.
        old_queries: returns the same queries as an older version's own model makes them, [Q, D], of
            the version that it is given; None where it cannot. With it, this is the *cascade* of
            `plan-migration`, and without, its *bridge_cascade*.
    Raises: as `Reader.search` and `KeptVectors.of`; DataError: `rerank` is below k; ShapeError:
        kept vectors are of another dim. EncodingLimitError: more than `most` objects have neither
        a stored nor a kept vector.
    """
    check_k(k)
    if not isinstance(rerank, (int, np.integer)) or rerank < k:
        raise DataError(f"rerank is {rerank}; it must be a whole number, and at least k, {k}.")
    target = reader.lineage.resolve(version)
    dim = reader.lineage.manifest(target).dim
    if kept.dim != dim:
        raise ShapeError(
            f"Kept vectors have dim {kept.dim}, and version {target} has {dim}; give those of "
            "that version."
        )
    oldest = reader.oldest_row(target, side)
    if oldest is None or oldest == target:
        return Reranked(reader.search(queries, k, target, side, metric, ids, filter=filter))
    # Rows of versions before and after j are both read at the oldest: every way leads back.
    start = min(oldest, target)
    asked = reader.queries(queries, target)
    proposing = None if old_queries is None or start == target else old_queries(start)
    if proposing is None:
        proposing = reader.transform(asked, target, start)
    first = reader.search(proposing, rerank, start, side, metric, ids, filter=filter)
    if not any(map(len, first)):
        return Reranked(first)
    touched = pc.unique(pa.concat_arrays([hits.ids for hits in first if len(hits)]))
    own, vectors = reader.own_rows(touched, target, side)
    others = touched.filter(pc.invert(pc.is_in(touched, value_set=own)))
    computed = len(kept.missing(others))
    if most is not None and computed > most:
        raise EncodingLimitError(
            f"{computed} objects would have to be encoded, and one search may have {most} encoded; "
            "send fewer queries at a time, or re-rank fewer hits."
        )
    if len(others):
        vectors = np.concatenate([vectors, kept.of(others)])
    order = pa.concat_arrays([own, others])
    chosen = reader.default_metric(target, side) if metric is None else metric
    ranked = [
        _ranked(hits, vectors[pc.index_in(hits.ids, value_set=order).to_numpy()], query, chosen, k)
        if len(hits)
        else hits
        for hits, query in zip(first, asked, strict=True)
    ]
    hits = [Hits(h.ids, h.scores, np.full(len(h), target, np.int64)) for h in ranked]
    return Reranked(hits, len(own), len(others) - computed, computed)


def _ranked(hits: Hits, vectors: Floats, query: Floats, metric: Metric, k: int) -> Hits:
    return by_vectors(hits, vectors, query, metric).first(k)
