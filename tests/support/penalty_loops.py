"""Small tables of embeddings, and calls of `GramianPenalty` on batches of them."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian import GramianPenalty

DIM, QUERIES, CANDIDATES = 4, 30, 12
ESTIMATORS = ("sogram", "sagram", "sampled")


def tables(seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(QUERIES, DIM, generator=draw), torch.randn(CANDIDATES, DIM, generator=draw)


def called(
    penalty: GramianPenalty,
    query: Tensor,
    candidate: Tensor,
    query_ids: Tensor | None = None,
    candidate_ids: Tensor | None = None,
) -> Tensor:
    """The value of a step's batch, with the calls around it that "sagram" needs; no row moves."""
    ids, has_cache = (query_ids, candidate_ids), penalty.query.estimator.wants_after
    if has_cache:
        penalty.before_step(query.detach().clone(), candidate.detach().clone(), *ids)
    value: Tensor = penalty(query, candidate, *ids)
    if has_cache:
        penalty.after_step(query, candidate)
    return value


def run(penalty: GramianPenalty, steps: int, seed: int = 0, size: int = 8) -> list[float]:
    """Values of `steps` calls in training mode, with ids, of embeddings that move."""
    draw = torch.Generator().manual_seed(seed)
    users, items = tables()
    values = []
    for step in range(steps):
        a = torch.randint(QUERIES, (size,), generator=draw)
        b = torch.randint(CANDIDATES, (size,), generator=draw)
        moved = 1 + step / 50
        values.append(float(called(penalty, moved * users[a], moved * items[b], a, b)))
    return values
