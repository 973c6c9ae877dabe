"""Small tables of embeddings, and calls of `GramianPenalty` on batches of them."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian import GramianPenalty

DIM, QUERIES, CANDIDATES = 4, 30, 12
ESTIMATORS = ("sogram", "sampled")


def tables(seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(QUERIES, DIM, generator=draw), torch.randn(CANDIDATES, DIM, generator=draw)


def run(penalty: GramianPenalty, steps: int, seed: int = 0, size: int = 8) -> list[float]:
    """Values of `steps` calls in training mode, with ids, of embeddings that move."""
    draw = torch.Generator().manual_seed(seed)
    users, items = tables()
    values = []
    for step in range(steps):
        a = torch.randint(QUERIES, (size,), generator=draw)
        b = torch.randint(CANDIDATES, (size,), generator=draw)
        moved = 1 + step / 50
        values.append(float(penalty(moved * users[a], moved * items[b], a, b)))
    return values
