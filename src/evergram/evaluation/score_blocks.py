"""Scores of queries and candidates, in blocks of at most so many bytes; and the best of them."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

import torch
from torch import Tensor

# Bytes of all scores that are held at once, whatever the number of queries and of candidates.
SCORE_BYTES = 1 << 25
# A product of fewer rows is slow, so that a larger catalogue is cut, too.
LEAST_ROWS = 64
# Fewer candidates a group save nothing over one search.
LEAST_GROUP = 4
# Rows that are searched at once, so that what is gathered of them is small beside all scores.
SEARCHED_ROWS = 256


class ScoreBlocks:
    """Computes ⟨u_a, v_b⟩ block by block, each block in the memory of the one before.

    Args:
        candidate: [N, D].
        budget: bytes of a block at most; one score always fits. None is `SCORE_BYTES`.
        beside: bytes that the caller holds for each query of a block beside its scores; they are
            at most `budget` in all, too, but for those of one query.
    Attributes:
        rows: queries of a block; `of` takes at most so many.
        width: candidates of a block.
    """

    def __init__(self, candidate: Tensor, budget: int | None = None, beside: int = 0) -> None:
        self.candidate: Tensor = candidate.detach()
        budget = SCORE_BYTES if budget is None else budget
        scores = budget // candidate.element_size()
        self.width: int = max(1, min(len(candidate), scores // LEAST_ROWS))
        self.rows: int = max(1, min(scores // self.width, budget // max(1, beside)))
        self._memory = candidate.new_empty(0)
        self._largest: float | None = None

    def bounded(self, query: Tensor) -> bool:
        """Return whether all scores of these queries [Q, D] must be finite, by the largest
        coordinates alone."""
        if self._largest is None:
            self._largest = _largest_coordinate(self.candidate)
        product = self._largest * _largest_coordinate(query.detach().to(self.candidate))
        # NaN and infinity are below nothing.
        return product * self.candidate.shape[-1] < torch.finfo(self.candidate.dtype).max / 2

    def of(self, query: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the first candidate and the scores of each block of queries [Q, D], Q ≤ `rows`, [Q,
        W] with W ≤ `width`; they may be changed, and the next block overwrites them."""
        query = query.detach().to(self.candidate)
        for start in range(0, len(self.candidate), self.width):
            block = self.candidate[start : start + self.width]
            shape = len(query), len(block)
            if len(self._memory) < shape[0] * shape[1]:
                self._memory = self.candidate.new_empty(0)  # never two blocks at once
                self._memory = self.candidate.new_empty(shape[0] * shape[1])
            scores = self._memory[: shape[0] * shape[1]].view(shape)
            torch.mm(query, block.T, out=scores)
            yield start, scores


def _largest_coordinate(vectors: Tensor) -> float:
    """Return the largest absolute coordinate; NaN if there is one."""
    if not vectors.numel():
        return 0.0
    least, most = torch.aminmax(vectors)
    return float(torch.maximum(-least, most))


def largest_scores(scores: Tensor, k: int) -> Tensor:
    """Return the k largest scores of each row, in no order, [Q, K]; K is k or W, the smaller.

    Each is in one of the k groups of candidates with the largest maxima, ties included: a score
    outside these groups is at most k others. So one pass takes the maximum of each group, and only
    k groups are searched. A group is every W/G-th candidate, whose maxima are taken side by side.

    Args:
        scores: [Q, W]; not NaN.
    """
    k = min(k, scores.shape[1])
    size = group_size(scores.shape[1], k)
    if size < LEAST_GROUP:
        return scores.topk(k, sorted=False).values
    return torch.cat([_searched(part, k, size) for part in torch.split(scores, SEARCHED_ROWS)])


def _searched(scores: Tensor, k: int, size: int) -> Tensor:
    """`largest_scores`, by groups of so many candidates."""
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
    """Return the k candidates of each query with the largest scores, best first, int64 [Q, K].

    K is k, or N if there are fewer. Those of equal score are in the order of their rows, and where
    more equal the last score than fit, the lowest rows are taken.

    Args:
        query: [Q, D]; candidate: [N, D].
        budget: bytes of the scores held at once; None is `SCORE_BYTES`.
    """
    k = min(k, len(candidate))
    # Of each query: scores of its list five times, and seven times their places.
    blocks = ScoreBlocks(candidate, budget, k * (5 * candidate.element_size() + 7 * 8))
    lists = [query.new_empty(0, k, dtype=torch.int64)]
    for part in torch.split(query, blocks.rows):
        best = candidate.new_empty(len(part), 0)
        place = torch.empty(len(part), 0, dtype=torch.int64, device=candidate.device)
        for start, scores in blocks.of(part):
            rows = _best_rows(scores, k)
            best = torch.cat([best, scores.gather(1, rows)], dim=1)
            place = torch.cat([place, rows.add_(start)], dim=1)
            # Equal scores stand in the order of their rows, and a stable sort leaves them so.
            best, order = best.sort(dim=1, descending=True, stable=True)
            best, place = best[:, :k], place.gather(1, order[:, :k])
        lists.append(place.to(query.device))
    return torch.cat(lists)


def _best_rows(scores: Tensor, k: int) -> Tensor:
    """Return the candidates of the k largest scores of each query [Q, W], ascending, int64 [Q, K].
    Of those that tie for the last place `topk` takes any; one more score tells which queries have
    such a tie, and they alone are looked through again."""
    k = min(k, scores.shape[1])
    largest, rows = scores.topk(min(k + 1, scores.shape[1]))
    rows = rows[:, :k].sort(1).values
    if 0 < k < scores.shape[1]:
        for query in (largest[:, k] == largest[:, k - 1]).nonzero()[:, 0].tolist():
            own, last = scores[query], largest[query, k - 1]
            above = (~(own <= last)).nonzero()[:, 0]  # with NaN, as topk
            equal = (own == last).nonzero()[: k - len(above), 0]
            rows[query] = torch.cat([above, equal]).sort().values
    return rows
