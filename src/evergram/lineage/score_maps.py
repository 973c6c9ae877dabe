"""Scores of stored rows as the version that is asked for gave them, by the canaries of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.compatibility.scores.score_map import Doubles, ScoreMap
from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.stores.rows import Hits

Metric = Literal["ip", "l2", "cosine"]
# Who made query vectors: the version's own model, or the way back, from those of a later version.
QueryVectors = Literal["own", "read_back"]


class ScoreMaps:
    """The maps of scores between the versions of a lineage, each made when it is first needed.

    A map is fitted for each pair of versions, and not composed along the chain: a score at version
    0 is a product of two vectors read as version 0, and no function of their score at version 1.
    It is made of the canaries, which both versions keep for ever and which files that were aligned
    hold out of the fit, so that it is not stored: the hashes of the versions cover what it is
    made of. Several threads may use one.
    """

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._made: dict[tuple[int, int, str, str, Metric, QueryVectors], ScoreMap] = {}

    def of(
        self,
        source: int,
        target: int,
        sides: tuple[str, str],
        metric: Metric = "ip",
        query_vectors: QueryVectors = "read_back",
    ) -> ScoreMap:
        """Return the map of scores at version `target` from rows of version `source`.

        Args:
            sides: of the queries and of what is searched; on one side, no object meets itself.
            query_vectors: those that are read back are production's.
        Raises: LineageError: the versions keep too few canaries in common; or rows of `source`
            cannot be read as `target`.
        """
        key = source, target, *sides, metric, query_vectors
        if key not in self._made:
            self._made[key] = self._fit(source, target, sides, metric, query_vectors)
        return self._made[key]

    def hits(
        self,
        hits: Hits,
        target: int,
        sides: tuple[str, str],
        metric: Metric = "ip",
        query_vectors: QueryVectors = "read_back",
    ) -> Hits:
        """Return hits with the scores that version `target` would have given, best first.

        Those of rows of `target` itself stay.
        Raises: as `of`.
        """
        scores = hits.scores.astype(np.float64)
        for source in np.unique(hits.versions).tolist():
            if source != target or self._query_source(target, query_vectors) != target:
                mine = hits.versions == source
                chosen = self.of(source, target, sides, metric, query_vectors)
                scores[mine] = chosen.apply(scores[mine])
        best = np.argsort(-scores, kind="stable")
        ids = hits.ids.take(pa.array(best))
        return Hits(ids, scores[best].astype(np.float32), hits.versions[best])

    def _fit(
        self,
        source: int,
        target: int,
        sides: tuple[str, str],
        metric: Metric,
        query_vectors: QueryVectors,
    ) -> ScoreMap:
        of_queries, same = self._query_source(target, query_vectors), sides[0] == sides[1]
        if same:
            queries, rows, own = self._canaries((of_queries, source, target), target, sides[0])
            own_rows = own
        else:
            queries, own = self._canaries((of_queries, target), target, sides[0])
            rows, own_rows = self._canaries((source, target), target, sides[1])
        now, then = _scores(queries, rows, metric, same), _scores(own, own_rows, metric, same)
        try:
            return ScoreMap.fit(now, then)
        except DataError as error:
            raise LineageError(
                f"Scores of version {source} cannot be calibrated to those of version {target} by "
                f"the objects that both keep as canaries: {error} Ask for raw scores."
            ) from error

    def _query_source(self, target: int, query_vectors: QueryVectors) -> int:
        """Return the version whose vectors queries at version `target` are read from."""
        return target if query_vectors == "own" else max(target, self._lineage.production)

    def _canaries(self, versions: Sequence[int], target: int, side: str) -> list[Tensor]:
        """Return the vectors of each version's canaries, of those that all of them keep, read as
        `target`; float64 [n, D]."""
        kept = [self._lineage.canaries(version).get(side) for version in versions]
        ids = None if kept[0] is None else kept[0][0]
        for canaries in kept:
            if ids is None or canaries is None:
                numbers = " and ".join(map(str, sorted(set(versions))))
                raise LineageError(
                    f"Versions {numbers} do not all keep canaries of side {side!r}, by which "
                    "scores could be calibrated; ask for raw scores."
                )
            ids = ids.filter(pc.is_in(ids, value_set=canaries[0]))
        vectors = []
        for version, canaries in zip(versions, kept, strict=True):
            assert canaries is not None
            places = pc.index_in(ids, value_set=canaries[0]).to_numpy().astype(np.int64)
            rows = canaries[1][torch.from_numpy(places)]
            vectors.append(self._read(rows, version, target).double())
        return vectors

    def _read(self, vectors: Tensor, source: int, target: int) -> Tensor:
        if source == target:
            return vectors
        if source > target:
            return self._lineage.chain.apply(vectors, source, target)
        forward = self._lineage.forward(source, target)
        if forward is None:
            raise LineageError(
                f"Rows of version {source} cannot be read as the later version {target}, as no "
                "forward map was published; ask for raw scores."
            )
        return vectors.double() @ forward[0].T + forward[1]


def _scores(queries: Tensor, rows: Tensor, metric: Metric, same: bool) -> Doubles:
    """Return the scores of all pairs of queries and rows; of one side, of each two objects."""
    if metric == "cosine":
        queries, rows = (
            part / part.norm(dim=1, keepdim=True).clamp_min(1e-30) for part in (queries, rows)
        )
    scores = -torch.cdist(queries, rows).square() if metric == "l2" else queries @ rows.T
    if not same:
        return scores.flatten().numpy()
    upper = torch.triu_indices(len(queries), len(queries), 1)
    return scores[upper[0], upper[1]].numpy()
