"""Scores of stored rows as the version that is asked for gave them, by the canaries of both."""

from __future__ import annotations

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
        self._made: dict[tuple[int, int, str, str, Metric], ScoreMap] = {}

    def of(
        self, source: int, target: int, sides: tuple[str, str], metric: Metric = "ip"
    ) -> ScoreMap:
        """Return the map of scores at version `target` from rows of version `source`.

        Args:
            sides: of the queries and of what is searched; on one side, no object meets itself.
        Raises: LineageError: the versions keep too few canaries in common; or rows of `source`
            cannot be read as `target`.
        """
        key = source, target, *sides, metric
        if key not in self._made:
            self._made[key] = self._fit(source, target, sides, metric)
        return self._made[key]

    def hits(self, hits: Hits, target: int, sides: tuple[str, str], metric: Metric = "ip") -> Hits:
        """Return hits with the scores that version `target` would have given, best first.

        Those of rows of `target` itself stay.
        Raises: as `of`.
        """
        scores = hits.scores.astype(np.float64)
        for source in np.unique(hits.versions).tolist():
            if source != target:
                mine = hits.versions == source
                scores[mine] = self.of(source, target, sides, metric).apply(scores[mine])
        best = np.argsort(-scores, kind="stable")
        ids = hits.ids.take(pa.array(best))
        return Hits(ids, scores[best].astype(np.float32), hits.versions[best])

    def _fit(self, source: int, target: int, sides: tuple[str, str], metric: Metric) -> ScoreMap:
        queries = self._canaries(source, target, sides[0])
        searched = queries if sides[0] == sides[1] else self._canaries(source, target, sides[1])
        now, then = (
            _scores(*pair, metric, same=sides[0] == sides[1])
            for pair in zip(queries, searched, strict=True)
        )
        try:
            return ScoreMap.fit(now, then)
        except DataError as error:
            raise LineageError(
                f"Scores of version {source} cannot be calibrated to those of version {target} by "
                f"the objects that both keep as canaries: {error} Ask for raw scores."
            ) from error

    def _canaries(self, source: int, target: int, side: str) -> tuple[Tensor, Tensor]:
        """Return the vectors of the canaries that both versions keep: those of `source`, read as
        `target`, and the target's own; float64 [n, D]."""
        new, old = (self._lineage.canaries(v).get(side) for v in (source, target))
        if new is None or old is None:
            raise LineageError(
                f"Versions {source} and {target} keep no canaries of side {side!r}, by which "
                "scores could be calibrated; ask for raw scores."
            )
        places = pc.index_in(new[0], value_set=old[0])
        rows = torch.from_numpy(places.is_valid().to_numpy(zero_copy_only=False).copy())
        own = old[1][torch.from_numpy(places.drop_null().to_numpy().astype(np.int64))]
        return self._read(new[1][rows], source, target).double(), own.double()

    def _read(self, vectors: Tensor, source: int, target: int) -> Tensor:
        if source > target:
            return self._lineage.chain.apply(vectors, source, target)
        forward = self._lineage.forward(source, target)
        if forward is None:
            raise LineageError(
                f"Rows of version {source} cannot be read as the later version {target}, as no "
                "forward map was published; ask for raw scores."
            )
        return vectors.double() @ forward[0].T + forward[1]


def _scores(queries: Tensor, rows: Tensor, metric: Metric, *, same: bool) -> Doubles:
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
