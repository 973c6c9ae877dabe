"""The softmax's log-partition over all candidates, in tiles: memory that N does not change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Scores [Q, T] that are in memory at once.
TILE_SCORES = 1 << 21


def log_partition(
    query: Tensor,
    candidates: Tensor,
    temperature: float,
    excluded: tuple[Tensor, Tensor] | None = None,
    tile_scores: int = TILE_SCORES,
) -> Tensor:
    """Return log Σ_b exp(⟨u_a, v_b⟩/τ) of each query a over all candidates b, [Q]; differentiable.

    The scores [Q, N] are computed a tile of candidates at a time, and once more in the backward
    pass, so that no more than `tile_scores` of them (or Q, if that is more) are in memory at once.
    The gradients are the dense softmax's: ∂/∂u_a = Σ_b p_ab v_b/τ and ∂/∂v_b = Σ_a g_a p_ab u_a/τ.

    Args:
        query: [Q, D].
        candidates: [N, D].
        temperature: τ.
        excluded: int64 [M] rows of `query` and of `candidates`: pairs that are not in the sum. A
            query that excludes all candidates has −∞, and no gradient.
        tile_scores: of which a tile is made.
    """
    value: Tensor = _LogPartition.apply(  # type: ignore[no-untyped-call]
        query, candidates, 1 / temperature, excluded, max(1, tile_scores // max(1, len(query)))
    )
    return value


class _LogPartition(torch.autograd.Function):
    """Keeps the two sides and the result for the backward pass, and no scores."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        candidates: Tensor,
        scale: float,
        excluded: tuple[Tensor, Tensor] | None,
        width: int,
    ) -> Tensor:
        ctx.scale, ctx.width, ctx.excluded = scale, width, _by_candidate(excluded)
        total = query.new_full((len(query),), -torch.inf)
        for _, logits in _tiles(query * scale, candidates, ctx.excluded, width):
            total = torch.logaddexp(total, logits.logsumexp(1))
        ctx.save_for_backward(query, candidates, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, candidates, total = ctx.saved_tensors
        # Of an empty sum every exp(−∞ − 0) is zero.
        total = torch.where(total > -torch.inf, total, 0.0)[:, None]
        of_query, of_candidates = torch.zeros_like(query), torch.empty_like(candidates)
        weighted = query * (grad * ctx.scale)[:, None]
        for place, logits in _tiles(query * ctx.scale, candidates, ctx.excluded, ctx.width):
            chance = logits.sub_(total).exp_()
            of_query.addmm_(chance, candidates[place])
            torch.mm(chance.T, weighted, out=of_candidates[place])
        of_query *= (grad * ctx.scale)[:, None]
        return of_query, of_candidates, None, None, None


def _tiles(
    query: Tensor, candidates: Tensor, excluded: tuple[Tensor, Tensor] | None, width: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield tiles of candidates with their scores, [Q, T]; −∞ where a pair is excluded.

    Args:
        excluded: ordered by candidate.
    """
    for start in range(0, len(candidates), width):
        place = slice(start, min(start + width, len(candidates)))
        logits = query @ candidates[place].T
        if excluded is not None:
            rows, columns = excluded
            ends = torch.tensor([place.start, place.stop], device=columns.device)
            first, last = torch.searchsorted(columns, ends).tolist()
            logits[rows[first:last], columns[first:last] - start] = -torch.inf
        yield place, logits


def _by_candidate(excluded: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
    if excluded is None:
        return None
    rows, columns = excluded
    columns, order = torch.sort(columns)
    return rows[order], columns
