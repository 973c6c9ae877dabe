"""A small population whose moment is known, for tests of Gramian estimators."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian.estimator import EntityBatch, Population

DIM, N, K = 5, 40, 2


def _drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings [N, D], a measure [N] and factors [N, K]."""
    draw = torch.Generator().manual_seed(seed)
    share = torch.rand(N, generator=draw)
    factors = torch.randn(N, K, generator=draw)
    return torch.randn(N, DIM, generator=draw), share / share.sum(), factors


EMBEDDINGS, SHARE, FACTORS = _drawn()


def population(scale: float = 1.0) -> Population:
    """Every entity in two blocks, its embedding multiplied by `scale`."""
    parts = (slice(0, 7), slice(7, None))
    return lambda: [(scale * EMBEDDINGS[p], SHARE[p], FACTORS[p]) for p in parts]


def rows(ids: Tensor, scale: float = 1.0) -> EntityBatch:
    """A batch drawn uniformly, weighted to stand for SHARE."""
    return EntityBatch(ids, SHARE[ids] * N, scale * EMBEDDINGS[ids], FACTORS[ids])


def naive_moment(scale: float = 1.0) -> Tensor:
    """The moment of the population, summed entity by entity."""
    total = torch.zeros(DIM, DIM + K)
    for i in range(N):
        u = scale * EMBEDDINGS[i]
        total += SHARE[i] * torch.outer(u, torch.cat([u, FACTORS[i]]))
    return total
