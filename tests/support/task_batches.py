"""Embeddings and batches of observed pairs, in float64, for tests of tasks."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.gramian.estimator import Moment, exact_moment


def normal(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


def batch_of(candidate: list[int], target: Tensor | None = None) -> Batch:
    size = len(candidate)
    ones = torch.ones(size, dtype=torch.float64)
    return Batch(
        torch.arange(size),
        torch.tensor(candidate),
        ones if target is None else target,
        ones[:, None],
        ones[:, None],
    )


def moment(embeddings: Tensor, share: Tensor, factors: Tensor | None = None) -> Moment:
    """The exact moment of embeddings under a measure."""
    own = embeddings[:, :0] if factors is None else factors
    return Moment(exact_moment(lambda: [(embeddings, share, own)]))
