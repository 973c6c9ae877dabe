"""Map scores of stored rows to the scale of a past version, fitted on canaries of both versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.compatibility.score_map import LEAST_PAIRS, Doubles, ScoreMap
from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.stores.store import Hits

Metric = Literal["ip", "l2", "cosine"]
# Where query vectors come from: the version's own model, or production's, transformed back.
QueryVectors = Literal["own", "read_back"]


class ScoredSearch(NamedTuple):
    """Everything that determines a search's scores, except the versions of the rows."""

    target: int  # version of the search
    sides: tuple[str, str]  # of the queries and of the rows
    metric: Metric
    query_version: int  # version of the model that made the queries, which are read as the target


class ScoreMaps:
    """The score maps between versions of a lineage, each fitted when first needed; thread-safe.

    A map is fitted for each pair of versions instead of composed along the chain: a score at
    version 0 is a product of two vectors read as version 0, which is not a function of their score
    at version 1. It is fitted on canaries, half of which are held out if there are enough."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._maps: dict[tuple[int, ScoredSearch], ScoreMap] = {}

    def of(self, source: int, search: ScoredSearch) -> ScoreMap:
        """Return the map from scores of rows of version `source` to the target's scores. If queries
        and rows are of the same side, it is fitted on pairs of different objects."""
        if (source, search) not in self._maps:
            self._maps[source, search] = self._fit(source, search)
        return self._maps[source, search]

    def hits(self, hits: Hits, search: ScoredSearch) -> Hits:
        """Return hits with scores mapped to the target's scale, best first. Scores are unchanged if
        both row and query are the target's own."""
        scores = hits.scores.astype(np.float64)
        for source in np.unique(hits.versions).tolist():
            if {source, search.query_version} != {search.target}:
                mask = hits.versions == source
                scores[mask] = self.of(source, search).apply(scores[mask])
        return hits.ranked(scores)

    def pair_scores(self, source: int, search: ScoredSearch) -> tuple[Doubles, Doubles]:
        """Return the scores of all pairs of canaries, current and at the target, both [P]."""
        target, sides, metric, query_version = search
        if sides[0] != sides[1]:
            queries, old_queries = self._canaries((query_version, target), target, sides[0])
            rows, old_rows = self._canaries((source, target), target, sides[1])
            pairs = None
        else:
            versions = query_version, source, target
            queries, rows, old_rows = self._canaries(versions, target, sides[0])
            old_queries, count = old_rows, len(old_rows)
            pairs = torch.triu_indices(count, count, 1)
            # If queries and rows are read from different versions, the pairs (a, b) and (b, a) have
            # different scores, so use both. With too few objects, the fit is refused anyway.
            if query_version != source and pairs.shape[1] >= LEAST_PAIRS:
                pairs = (~torch.eye(count, dtype=torch.bool)).nonzero().T
        old_scores = _scores(old_queries, old_rows, metric, pairs)
        return _scores(queries, rows, metric, pairs), old_scores

    def _fit(self, source: int, search: ScoredSearch) -> ScoreMap:
        scores, old_scores = self.pair_scores(source, search)
        try:
            return ScoreMap.fit(scores, old_scores)
        except DataError as error:
            what = f"Scores of version {source} cannot be calibrated to version {search.target}"
            raise LineageError(f"{what} on their canaries: {error} Use raw scores.") from error

    def _canaries(self, versions: Sequence[int], target: int, side: str) -> list[Tensor]:
        """Return, for each version, the vectors of the canaries that all versions have, read as
        `target`; float64 [n, D]."""
        canaries = [self._lineage.canaries(version).get(side) for version in versions]
        if None in canaries:
            numbers = " and ".join(map(str, sorted(set(versions))))
            what = f"do not all have canaries of side {side!r}"
            raise LineageError(f"Versions {numbers} {what}; use raw scores.")
        blocks = [block for block in canaries if block is not None]
        ids = blocks[0][0]
        for other_ids, _ in blocks:
            ids = ids.filter(pc.is_in(ids, value_set=other_ids))
        vectors = []
        for version, (block_ids, rows) in zip(versions, blocks, strict=True):
            index = pc.index_in(ids, value_set=block_ids).to_numpy().astype(np.int64)
            vectors.append(self._read(rows[torch.from_numpy(index)], version, target).double())
        return vectors

    def _read(self, vectors: Tensor, source: int, target: int) -> Tensor:
        if source == target:
            return vectors
        if source > target:
            return self._lineage.chain.apply(vectors, source, target)
        forward = self._lineage.forward(source, target)
        if forward is None:
            what = f"Rows of version {source} cannot be read as the later version {target}"
            raise LineageError(f"{what}: no forward map was published; use raw scores.")
        return vectors.double() @ forward[0].T + forward[1]


def query_version_of(query_vectors: QueryVectors | int | None, target: int, production: int) -> int:
    """Return the version whose model made the queries of a search at version `target`."""
    if query_vectors in get_args(QueryVectors):
        return target if query_vectors == "own" else max(target, production)
    if isinstance(query_vectors, int) and not isinstance(query_vectors, bool):
        return query_vectors
    given = "is not given" if query_vectors is None else f"is {query_vectors!r}"
    raise DataError(
        f"query_vectors {given}, but calibrated scores need it: 'own' for vectors from the model "
        f"of version {target}, 'read_back' for production's vectors transformed back, or the "
        "number of the version whose model made them."
    )


def _scores(queries: Tensor, rows: Tensor, metric: Metric, pairs: Tensor | None) -> Doubles:
    """Return the scores of pairs [2, n] of queries and rows, or of all pairs if None."""
    if metric == "cosine":
        queries, rows = (
            vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-30)
            for vectors in (queries, rows)
        )
    scores = -torch.cdist(queries, rows).square() if metric == "l2" else queries @ rows.T
    if pairs is None:
        return scores.flatten().numpy()
    return scores[pairs[0], pairs[1]].numpy()
