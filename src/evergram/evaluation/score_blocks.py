"""Scores of queries and candidates in blocks of bounded memory, and the best candidates."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

import torch
from torch import Tensor

SCORE_BYTES = 1 << 25  # bytes of scores in memory at once, for any number of queries and candidates
# Matrix products with fewer rows are slow, so large catalogues are split into column blocks.
LEAST_ROWS = 64
LEAST_GROUP = 4  # with smaller groups, grouping is no faster than one topk
# Rows searched at once, so that the gathered groups are small compared with all scores.
SEARCHED_ROWS = 256


class ScoreBlocks:
    """Computes ⟨u_a, v_b⟩ block by block, reusing one buffer.

    Args:
        candidate: [N, D].
        budget: maximum bytes of a block, but at least one score; None for `SCORE_BYTES`.
        per_query: further bytes that the caller needs per query. Their total is also limited to
            `budget`, but one query is always allowed.
    Attributes:
        rows: maximum number of queries per block.
        width: maximum number of candidates per block.
    """

    def __init__(self, candidate: Tensor, budget: int | None = None, per_query: int = 0) -> None:
        self.candidate: Tensor = candidate.detach()
        budget = SCORE_BYTES if budget is None else budget
        scores = budget // candidate.element_size()
        self.width: int = max(1, min(len(candidate), scores // LEAST_ROWS))
        self.rows: int = max(1, min(scores // self.width, budget // max(1, per_query)))
        self._memory = candidate.new_empty(0)
        self._largest: float | None = None

    def bounded(self, query: Tensor) -> bool:
        """Return True if the largest coordinates prove that all scores of these queries [Q, D] are
        finite."""
        if self._largest is None:
            self._largest = _largest_coordinate(self.candidate)
        product = self._largest * _largest_coordinate(query.detach().to(self.candidate))
        # The comparison is False for NaN and infinity.
        return product * self.candidate.shape[-1] < torch.finfo(self.candidate.dtype).max / 2

    def of(self, query: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield each block's first candidate row and its scores [Q, W], W ≤ `width`, for queries
        [Q, D], Q ≤ `rows`. The caller may modify them; the next block overwrites them."""
        query = query.detach().to(self.candidate)
        for start in range(0, len(self.candidate), self.width):
            block = self.candidate[start : start + self.width]
            shape = len(query), len(block)
            if len(self._memory) < shape[0] * shape[1]:
                self._memory = self.candidate.new_empty(0)  # free the old buffer first
                self._memory = self.candidate.new_empty(shape[0] * shape[1])
            scores = self._memory[: shape[0] * shape[1]].view(shape)
            torch.mm(query, block.T, out=scores)
            yield start, scores


def _largest_coordinate(vectors: Tensor) -> float:
    """Return the largest absolute coordinate, or NaN if any coordinate is NaN."""
    if not vectors.numel():
        return 0.0
    least, most = torch.aminmax(vectors)
    return float(torch.maximum(-least, most))


def largest_scores(scores: Tensor, k: int) -> Tensor:
    """Return the k largest scores of each row, unordered, [Q, K] with K = min(k, W).

    The k groups with the largest maxima contain them: any score outside is at most as large as k
    group maxima. One pass computes the maximum of each of G groups, then only k groups are
    searched. A group holds every G-th candidate, so that the pass over memory is contiguous.

    Args:
        scores: [Q, W], without NaN.
    """
    k = min(k, scores.shape[1])
    size = group_size(scores.shape[1], k)
    if size < LEAST_GROUP:
        return scores.topk(k, sorted=False).values
    return torch.cat([_search_groups(rows, k, size) for rows in torch.split(scores, SEARCHED_ROWS)])


def _search_groups(scores: Tensor, k: int, size: int) -> Tensor:
    """Compute `largest_scores` with groups of `size` candidates."""
    rows, width = scores.shape
    groups = width // size
    grouped = scores[:, : groups * size].view(rows, size, groups)
    # Group g holds the candidates g, g + groups, g + 2 groups, …
    best = grouped.amax(1).topk(k, sorted=False).indices
    members = torch.arange(0, groups * size, groups, device=scores.device)
    values = scores.gather(1, (best[:, :, None] + members).flatten(1))
    if groups * size < width:
        values = torch.cat([values, scores[:, groups * size :]], dim=1)
    return values.topk(k, sorted=False).values


def group_size(width: int, k: int) -> int:
    return 1 << (isqrt(width // k).bit_length() - 1) if k <= width and k else 1


def best_candidates(query: Tensor, candidate: Tensor, k: int, budget: int | None = None) -> Tensor:
    """Return the k candidates with the largest scores for each query, best first, int64 [Q, K].

    K = min(k, N). Candidates with equal scores are ordered by row, and ties for the last position
    go to the lowest rows.

    Args:
        query: [Q, D]; candidate: [N, D].
        budget: bytes of scores in memory at once; None for `SCORE_BYTES`.
    """
    k = min(k, len(candidate))
    # The peak per query is five copies of the list's scores and seven of its rows.
    blocks = ScoreBlocks(candidate, budget, k * (5 * candidate.element_size() + 7 * 8))
    lists = [query.new_empty(0, k, dtype=torch.int64)]
    for queries in torch.split(query, blocks.rows):
        best = candidate.new_empty(len(queries), 0)
        best_rows = torch.empty(len(queries), 0, dtype=torch.int64, device=candidate.device)
        for start, scores in blocks.of(queries):
            rows = _best_rows(scores, k)
            best = torch.cat([best, scores.gather(1, rows)], dim=1)
            best_rows = torch.cat([best_rows, rows.add_(start)], dim=1)
            # Equal scores are already in the order of their rows, and a stable sort keeps it.
            best, order = best.sort(dim=1, descending=True, stable=True)
            best, best_rows = best[:, :k], best_rows.gather(1, order[:, :k])
        lists.append(best_rows.to(query.device))
    return torch.cat(lists)


def _best_rows(scores: Tensor, k: int) -> Tensor:
    """Return the rows of the k largest scores of each query [Q, W], ascending, int64 [Q, K].
    `topk` breaks ties for the last position arbitrarily, so queries whose (k+1)-th score ties with
    the k-th are searched again."""
    k = min(k, scores.shape[1])
    largest, rows = scores.topk(min(k + 1, scores.shape[1]))
    rows = rows[:, :k].sort(1).values
    if 0 < k < scores.shape[1]:
        for query in (largest[:, k] == largest[:, k - 1]).nonzero()[:, 0].tolist():
            query_scores, last = scores[query], largest[query, k - 1]
            above = (~(query_scores <= last)).nonzero()[:, 0]  # includes NaN, like topk
            equal = (query_scores == last).nonzero()[: k - len(above), 0]
            rows[query] = torch.cat([above, equal]).sort().values
    return rows
