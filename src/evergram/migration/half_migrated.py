"""Search rows of which some have only an old vector and some only a new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, ShapeError
from evergram.retrieval.metric_search import Metric
from evergram.stores.rows import Floats, Hits, check_k, places_among, scores_by

# Finds the best k rows of each query [Q, D].
Search = Callable[[Floats, int], list[Hits]]
# Mean and deviation of a query's scores are taken over at least this many objects.
LEAST_SAMPLE = 20


@dataclass(frozen=True)
class HalfMigratedSearch:
    """One list of hits from an old index and a new one.

    An object that only the old index holds competes by its old score, taken to the new space by the
    line that makes mean and deviation of a query's old scores those of its new ones; one that both
    return keeps its new score. Both indexes are asked for k hits: if no object is in both, the
    result is then the k best of all objects by these scores.

    Args:
        old, new: search the rows with old and with new vectors.
        sample_old, sample_new: [n, D_old] and [n, D_new], vectors of the same objects, at least
            `LEAST_SAMPLE` of them, drawn at random.
        metric: of the scores that both searches return: "ip", "l2" (−‖q − z‖²) or "cosine".
    """

    old: Search
    new: Search
    sample_old: Floats
    sample_new: Floats
    metric: Metric

    def search(self, old_queries: Floats, new_queries: Floats, k: int) -> list[Hits]:
        """Return the k best of each query, with scores of the new space.

        Args:
            old_queries: [Q, D_old], by the old model, or by the new one through the backward
                transform.
            new_queries: [Q, D_new], of the same queries by the new model.
        Returns: ids as the indexes have them; as text if they are integers in one and text in the
            other.
        Raises: ShapeError: queries or samples are not of the same objects in the two spaces.
            DataError: k is below 1, there is no such metric, or scores cannot be calibrated.
        """
        check_k(k)
        if self.metric not in get_args(Metric):
            raise DataError(f"There is no metric {self.metric!r}; there is ip, l2 and cosine.")
        then, now = (
            scores_by(self.metric, queries.astype(np.float64), sample.astype(np.float64))
            for queries, sample in (
                (old_queries, self.sample_old),
                (new_queries, self.sample_new),
            )
        )
        if then.shape != now.shape:
            raise ShapeError(
                f"{then.shape[0]} queries and {then.shape[1]} sampled objects have old vectors, "
                f"and {now.shape[0]} and {now.shape[1]} new ones; give the same ones."
            )
        if then.shape[1] < LEAST_SAMPLE:
            raise DataError(
                f"{then.shape[1]} objects have both vectors, and scores are calibrated on at least "
                f"{LEAST_SAMPLE}; keep the old vectors of more of them."
            )
        spread = then.std(axis=1)
        if not (spread > 1e-12 * np.abs(then).max(axis=1)).all():
            raise DataError(
                "All sampled objects have the same old score for a query, so that scores cannot "
                "be calibrated; sample objects with different vectors."
            )
        slope = now.std(axis=1) / spread
        lines = zip(slope, now.mean(axis=1) - slope * then.mean(axis=1), strict=True)
        hits = zip(self.old(old_queries, k), self.new(new_queries, k), lines, strict=True)
        return [_merged(past, present, *line, k) for past, present, line in hits]


def _merged(old: Hits, new: Hits, slope: float, shift: float, k: int) -> Hits:
    """Return the best k of both lists; an id in both counts by its new score."""
    moved = Hits(old.ids, (slope * old.scores + shift).astype(np.float32), old.versions)
    # A list without hits may have ids of any type.
    if not len(old) or not len(new):
        return (moved if len(old) else new).first(k)
    past, present = old.ids, new.ids
    if past.type != present.type:
        past, present = past.cast(pa.string()), present.cast(pa.string())
    only_old = ~places_among(past, present)[0]
    moved = Hits(past, moved.scores, moved.versions).where(only_old)
    joined = Hits(
        pa.concat_arrays([present, moved.ids]),
        np.concatenate([new.scores, moved.scores]),
        np.concatenate([new.versions, moved.versions]),
    )
    return joined.ranked(joined.scores).first(k)
