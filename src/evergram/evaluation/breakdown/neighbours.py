"""The nearest neighbours of some embeddings among all of a side."""

from __future__ import annotations

import torch
from torch import Tensor

# Vectors that are compared at once.
ROWS = 65_536


def nearest_neighbours(vectors: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k nearest others of some vectors by cosine: cosines, best first, and rows.

    A vector of length zero has cosine 0 to all.

    Args:
        vectors: [N, D].
        rows: int64 [n], of the vectors whose neighbours are wanted.
    Returns: float [n, K] and int64 [n, K]; K is k, or N − 1 if that is less.
    """
    chosen = torch.nn.functional.normalize(vectors[rows], dim=1)
    best = chosen.new_empty(len(rows), 0)
    place = torch.empty(len(rows), 0, dtype=torch.int64)
    for start in range(0, len(vectors), ROWS):
        block = torch.nn.functional.normalize(vectors[start : start + ROWS], dim=1)
        scores = chosen @ block.T
        own = torch.nonzero((rows >= start) & (rows < start + len(block))).flatten()
        scores[own, rows[own] - start] = -torch.inf
        largest = scores.topk(min(k, scores.shape[1]))
        best = torch.cat([best, largest.values], dim=1)
        place = torch.cat([place, largest.indices + start], dim=1)
        kept = best.topk(min(k, best.shape[1]))
        best, place = kept.values, place.gather(1, kept.indices)
    k = min(k, len(vectors) - 1)
    return best[:, :k], place[:, :k]
