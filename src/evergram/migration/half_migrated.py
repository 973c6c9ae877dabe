"""Search rows of which some have only an old vector and some only a new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, ShapeError
from evergram.retrieval.metric_search import Metric
from evergram.stores.rows import Floats, Hits, check_k, scores_by

Doubles = npt.NDArray[np.float64]
# Finds the best k rows of each query [Q, D].
Search = Callable[[Floats, int], list[Hits]]
# Mean and deviation of a query's scores are taken over at least this many objects.
LEAST_SAMPLE = 20


@dataclass(frozen=True)
class HalfMigratedSearch:
    """One list of hits from an old index and a new one.

    An object that only the old index holds competes by its old score, taken to the new space; one
    that both return keeps its new score. Both indexes are asked for k hits: if no object is in
    both, the result is then the k best of all objects by these scores.

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
        Raises: ShapeError: these are not vectors of the same queries in the two spaces. DataError:
            k is below 1, there is no such metric, or scores cannot be calibrated.
        """
        check_k(k)
        if self.metric not in get_args(Metric):
            raise DataError(f"There is no metric {self.metric!r}; there is ip, l2 and cosine.")
        both = (old_queries, self.sample_old), (new_queries, self.sample_new)
        for queries, sample in both:
            if queries.ndim != 2 or queries.shape != (len(old_queries), sample.shape[-1]):
                raise ShapeError(
                    f"Queries are {list(queries.shape)}; [{len(old_queries)}, "
                    f"{sample.shape[-1]}] is needed."
                )
        old_scores, new_scores = (
            scores_by(self.metric, queries.astype(np.float64), sample.astype(np.float64))
            for queries, sample in both
        )
        lines = _lines(old_scores, new_scores)
        hits = zip(self.old(old_queries, k), self.new(new_queries, k), strict=True)
        return [
            _merged(past, present, *line, k)
            for line, (past, present) in zip(zip(*lines, strict=True), hits, strict=True)
        ]


def _lines(old: Doubles, new: Doubles) -> tuple[Doubles, Doubles]:
    """Return slope and shift [Q] of the lines that make mean and deviation of old scores those of
    new ones, [Q, n] of the same objects."""
    if old.shape != new.shape:
        raise ShapeError(
            f"{old.shape[1]} objects have an old vector in the sample and {new.shape[1]} a new "
            "one; give the same objects."
        )
    if old.shape[1] < LEAST_SAMPLE:
        raise DataError(
            f"{old.shape[1]} objects have both vectors, and scores are calibrated on at least "
            f"{LEAST_SAMPLE}; keep the old vectors of more of them."
        )
    spread = old.std(axis=1)
    if not (spread > 1e-12 * np.abs(old).max(axis=1)).all():
        raise DataError(
            "All sampled objects have the same old score for a query, so that scores cannot "
            "be calibrated; sample objects with different vectors."
        )
    slope: Doubles = new.std(axis=1) / spread
    return slope, new.mean(axis=1) - slope * old.mean(axis=1)


def _merged(old: Hits, new: Hits, slope: float, shift: float, k: int) -> Hits:
    """Return the best k of both lists; an id in both counts by its new score."""
    past, present = _of_one_type(old.ids, new.ids)
    only_old = pc.invert(pc.is_in(past, value_set=present))
    mask = only_old.to_numpy(zero_copy_only=False)
    moved = (slope * old.scores[mask].astype(np.float64) + shift).astype(np.float32)
    scores = np.concatenate([new.scores, moved])
    ids = pa.concat_arrays([present, past.filter(only_old)])
    versions = np.concatenate([new.versions, old.versions[mask]])
    best = np.argsort(-scores, kind="stable")[:k]
    return Hits(ids.take(pa.array(best)), scores[best], versions[best])


def _of_one_type(old: pa.Array, new: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return ids of one type; those of an empty list have that of the other."""
    if old.type == new.type:
        return old, new
    if not len(old):
        return pa.array([], new.type), new
    if not len(new):
        return old, pa.array([], old.type)
    return old.cast(pa.string()), new.cast(pa.string())
