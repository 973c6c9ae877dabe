"""Scores of queries and candidates, in blocks of at most so many bytes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# Bytes of all scores that are held at once, whatever the number of queries and of candidates.
SCORE_BYTES = 1 << 25
# A product of fewer rows is slow, so that a larger catalogue is cut, too.
LEAST_ROWS = 64


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
        self.candidate = candidate.detach()
        budget = SCORE_BYTES if budget is None else budget
        scores = budget // candidate.element_size()
        self.width = max(1, min(len(candidate), scores // LEAST_ROWS))
        self.rows = max(1, min(scores // self.width, budget // max(1, beside)))
        self._memory = candidate.new_empty(0)

    def of(self, query: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the first candidate and the scores of each block, [Q, W] with W ≤ `width`.

        The scores may be changed; the next block overwrites them.

        Args:
            query: [Q, D], Q ≤ `rows`; of any device and type.
        """
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


def best_candidates(query: Tensor, candidate: Tensor, k: int, budget: int | None = None) -> Tensor:
    """Return the k candidates of each query with the largest scores, best first, int64 [Q, K].

    K is k, or N if there are fewer.

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
            largest = scores.topk(min(k, scores.shape[1]))
            best = torch.cat([best, largest.values], dim=1)
            place = torch.cat([place, largest.indices + start], dim=1)
            chosen = best.topk(min(k, best.shape[1]))
            best, place = chosen.values, place.gather(1, chosen.indices)
        lists.append(place.to(query.device))
    return torch.cat(lists)
