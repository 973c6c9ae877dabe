"""Exact search: the largest inner products of queries with rows, by blocks of a matrix product."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evergram.stores.rows import Floats
from evergram.stores.snapshot.generation import Part
from evergram.stores.snapshot.segment import Places

# Scores computed at once: few enough to stay in the processor's cache until the best are picked.
SCORES = 1 << 19
LEAST_ROWS, MOST_ROWS = 1024, 1 << 16


class Best:
    """The k best rows so far of each of Q queries; a row is named by its segment and place."""

    def __init__(self, queries: int, k: int) -> None:
        self._k = k
        self._scores = [np.zeros(0, np.float32)] * queries
        self._rows: list[npt.NDArray[np.int64]] = [np.zeros((0, 2), np.int64)] * queries
        # The k-th best, which a row must exceed; −∞ until there are k.
        self._limits = np.full(queries, -np.inf, dtype=np.float32)

    def offer(self, scores: Floats, segment: int, rows: Places | int) -> None:
        """Offer rows of a segment to every query.

        Args:
            scores: [Q, b].
            rows: places [b] of the rows, or the first of b rows that lie together.
        """
        for i in np.flatnonzero(scores.max(axis=1, initial=-np.inf) > self._limits):
            places = _above(scores[i], self._limits[i], self._k)
            offered = places + rows if isinstance(rows, int) else rows[places]
            self.add(int(i), scores[i, places], segment, offered)

    def add(self, query: int, scores: Floats, segment: int, rows: Places) -> None:
        """Offer rows [b] with scores [b] to one query."""
        added = np.stack([np.full(len(rows), segment, dtype=np.int64), rows], axis=1)
        joined = np.concatenate([self._scores[query], scores])
        places = np.concatenate([self._rows[query], added])
        kept = _above(joined, np.float32(-np.inf), self._k)
        self._scores[query], self._rows[query] = joined[kept], places[kept]
        if len(kept) == self._k:
            self._limits[query] = self._scores[query].min()

    def rows(self, query: int) -> npt.NDArray[np.int64]:
        """Return segment and place of the best rows of a query, [≤k, 2], in any order."""
        return self._rows[query]


def _above(scores: Floats, limit: np.float32, k: int) -> Places:
    """Return the places of scores [n] above a limit, at most the k best, in any order."""
    above = np.flatnonzero(scores > limit) if limit > -np.inf or len(scores) <= k else None
    rest = scores if above is None else scores[above]
    if len(rest) <= k:
        return np.arange(len(rest)) if above is None else above
    best = np.argpartition(rest, len(rest) - k)[-k:]
    # A dead row has the score −∞.
    best = best[rest[best] > limit]
    return best if above is None else above[best]


def search_all(best: Best, number: int, part: Part, queries: Floats) -> None:
    """Offer all living rows of a segment."""
    size = min(MOST_ROWS, max(LEAST_ROWS, SCORES // len(queries)))
    for start in range(0, len(part.segment), size):
        scores = products(queries, part.segment.vectors[start : start + size])
        if part.dead is not None:
            scores[:, part.dead[start : start + size]] = -np.inf
        best.offer(scores, number, start)


def search_rows(best: Best, number: int, part: Part, queries: Floats, rows: Places) -> None:
    """Offer some rows of a segment."""
    size = min(MOST_ROWS, max(LEAST_ROWS, SCORES // len(queries)))
    for start in range(0, len(rows), size):
        mine = rows[start : start + size]
        best.offer(products(queries, part.segment.vectors[mine]), number, mine)


def products(queries: Floats, block: Floats) -> Floats:
    """Return inner products [Q, b], none NaN; one too large for float32 is infinite, as in every
    store."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(queries) == 1:
            scores = np.asarray((block @ queries[0])[None])
        else:
            scores = np.asarray(queries @ block.T)
        # Where a part of a sum is past float32, the sum is NaN or infinite, though it may be small.
        # A sum of squares sees that in one pass, and is past float32 itself from 1e19 on.
        if not np.isfinite(np.vdot(scores, scores)):
            rows = np.flatnonzero(~np.isfinite(scores).all(axis=0))
            for start in range(0, len(rows), LEAST_ROWS):
                some = rows[start : start + LEAST_ROWS]
                scores[:, some] = queries.astype(np.float64) @ block[some].T.astype(np.float64)
    return scores
