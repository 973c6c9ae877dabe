"""Scores of stored rows as the version that is asked for gave them, by the canaries of both."""

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
# What made the query vectors: the version's own model, or the backward transform of production's.
QueryVectors = Literal["own", "read_back"]


class ScoredSearch(NamedTuple):
    """What decides the scores of a search, apart from the versions of its rows."""

    target: int  # the version that it is made at
    sides: tuple[str, str]  # of the queries and of what is searched
    metric: Metric
    query_version: int  # whose model made the queries; another's were read as the target's


class ScoreMaps:
    """The maps of scores between the versions of a lineage, each made when it is first needed. A
    map is fitted for each pair of versions, and not composed along the chain: a score at version 0
    is a product of two vectors read as version 0, and no function of their score at version 1. It
    is made of the canaries, half of which were held out of the fit where there are enough. Several
    threads may use one."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._made: dict[tuple[int, ScoredSearch], ScoreMap] = {}

    def of(self, source: int, search: ScoredSearch) -> ScoreMap:
        """Return the map to the target's scores from those of rows of version `source`. Where
        queries and rows are of one side, it is made of pairs of two objects."""
        if (source, search) not in self._made:
            self._made[source, search] = self._fit(source, search)
        return self._made[source, search]

    def hits(self, hits: Hits, search: ScoredSearch) -> Hits:
        """Return hits with the scores that the target would have given, best first. Those of the
        target's own rows stay where the queries are its own, too."""
        scores = hits.scores.astype(np.float64)
        for source in np.unique(hits.versions).tolist():
            if {source, search.query_version} != {search.target}:
                mine = hits.versions == source
                scores[mine] = self.of(source, search).apply(scores[mine])
        return hits.ranked(scores)

    def pair_scores(self, source: int, search: ScoredSearch) -> tuple[Doubles, Doubles]:
        """Return the scores of all pairs of canaries, now and as the target gave them, both [P]."""
        target, sides, metric, of_queries = search
        if sides[0] != sides[1]:
            queries, own = self._canaries((of_queries, target), target, sides[0])
            rows, own_rows = self._canaries((source, target), target, sides[1])
            pairs = None
        else:
            queries, rows, own = self._canaries((of_queries, source, target), target, sides[0])
            own_rows = own
            pairs = torch.triu_indices(len(own), len(own), 1)
            # A score of a query read from one version with a row of another is not that of both
            # the other way round. Too few objects are too few both ways, too, and are refused.
            if of_queries != source and pairs.shape[1] >= LEAST_PAIRS:
                pairs = (~torch.eye(len(own), dtype=torch.bool)).nonzero().T
        then = _scores(own, own_rows, metric, pairs)
        return _scores(queries, rows, metric, pairs), then

    def _fit(self, source: int, search: ScoredSearch) -> ScoreMap:
        now, then = self.pair_scores(source, search)
        try:
            return ScoreMap.fit(now, then)
        except DataError as error:
            what = f"Scores of version {source} cannot be calibrated to version {search.target}"
            raise LineageError(f"{what} by their canaries: {error} Ask for raw scores.") from error

    def _canaries(self, versions: Sequence[int], target: int, side: str) -> list[Tensor]:
        """Return the vectors of each version's canaries, of those that all of them keep, read as
        `target`; float64 [n, D]."""
        kept = [self._lineage.canaries(version).get(side) for version in versions]
        if None in kept:
            numbers = " and ".join(map(str, sorted(set(versions))))
            what = f"do not all keep canaries of side {side!r}"
            raise LineageError(f"Versions {numbers} {what}; ask for raw scores.")
        blocks = [block for block in kept if block is not None]
        ids = blocks[0][0]
        for others, _ in blocks:
            ids = ids.filter(pc.is_in(ids, value_set=others))
        vectors = []
        for version, (others, rows) in zip(versions, blocks, strict=True):
            places = torch.from_numpy(
                pc.index_in(ids, value_set=others).to_numpy().astype(np.int64)
            )
            vectors.append(self._read(rows[places], version, target).double())
        return vectors

    def _read(self, vectors: Tensor, source: int, target: int) -> Tensor:
        if source == target:
            return vectors
        if source > target:
            return self._lineage.chain.apply(vectors, source, target)
        forward = self._lineage.forward(source, target)
        if forward is None:
            what = f"Rows of version {source} cannot be read as the later version {target}"
            raise LineageError(f"{what}: no forward map was published; ask for raw scores.")
        return vectors.double() @ forward[0].T + forward[1]


def query_version_of(query_vectors: QueryVectors | int | None, target: int, production: int) -> int:
    """Return the version whose model made the queries of a search at version `target`."""
    if query_vectors in get_args(QueryVectors):
        return target if query_vectors == "own" else max(target, production)
    if isinstance(query_vectors, int) and not isinstance(query_vectors, bool):
        return query_vectors
    said = "is not given" if query_vectors is None else f"is {query_vectors!r}"
    raise DataError(
        f"query_vectors {said}, and calibrated scores depend on it: 'own' are vectors that "
        f"the model of version {target} made, 'read_back' those of production read as it, and a "
        "number is the version whose model made them."
    )


def _scores(queries: Tensor, rows: Tensor, metric: Metric, pairs: Tensor | None) -> Doubles:
    """Return the scores of pairs of queries and rows [2, n]; of all where it is None."""
    if metric == "cosine":
        queries, rows = (
            part / part.norm(dim=1, keepdim=True).clamp_min(1e-30) for part in (queries, rows)
        )
    scores = -torch.cdist(queries, rows).square() if metric == "l2" else queries @ rows.T
    if pairs is None:
        return scores.flatten().numpy()
    return scores[pairs[0], pairs[1]].numpy()
