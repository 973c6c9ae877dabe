"""The softmax's log-partition over all candidates, in tiles: memory that pairs do not change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evergram.tasks.partition.bfloat16_products import warn_without_bfloat16
from evergram.tasks.partition.limited_shares import limit_shares

# Scores [T, N] that are in memory at once.
TILE_SCORES = 1 << 24
# Of a tile, scores that are turned into shares at once: on a processor they stay in its cache.
CACHED_SCORES = 1 << 18


def log_partition_sum(
    query: Tensor,
    candidates: Tensor,
    weight: Tensor,
    temperature: float,
    *,
    largest_share: float | None = None,
    lower_products: bool = False,
    tile_scores: int = TILE_SCORES,
) -> Tensor:
    """Return Σ_a w_a log Z_a, Z_a = Σ_b exp(⟨u_a, v_b⟩/τ) over all candidates b; differentiable.

    The scores [Q, N] are computed once, a tile of queries at a time, and the gradients with them:
    ∂/∂u_a = w_a Σ_b p_ab v_b/τ and ∂/∂v_b = Σ_a w_a p_ab u_a/τ, the dense softmax's. No more than
    `tile_scores` of the scores (or N, if that is more) are in memory at once.

    Args:
        query: [Q, D].
        candidates: [N, D].
        weight: w, [Q]; it has no gradient.
        temperature: τ.
        largest_share: q: no p_ab is above it, and log Z_a is the A of `limit_shares`; None is no
            limit. It needs more than 1/q candidates.
        lower_products: multiply matrices in bfloat16, with sums in float32, where the processor
            can; all else is float32.
        tile_scores: of which a tile is made.
    """
    if lower_products:
        warn_without_bfloat16(query.device.type)
    rows = max(1, tile_scores // max(1, len(candidates)))
    value: Tensor = _LogPartitionSum.apply(  # type: ignore[no-untyped-call]
        *(query, candidates, weight.detach(), 1 / temperature, rows),
        *(largest_share, lower_products),
    )
    return value


class _LogPartitionSum(torch.autograd.Function):
    """Computes the gradients in the forward pass, while a tile's scores are at hand."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        candidates: Tensor,
        weight: Tensor,
        scale: float,
        rows: int,
        largest_share: float | None,
        lower_products: bool,
    ) -> Tensor:
        total = query.new_zeros(())
        of_query, of_candidates = torch.empty_like(query), torch.zeros_like(candidates)
        buffer = query.new_empty(min(rows, len(query)), len(candidates))
        part = len(buffer)
        if buffer.device.type == "cpu":
            part = max(1, torch.get_num_threads() * CACHED_SCORES // max(1, len(candidates)))
        spare = None if largest_share is None else torch.empty_like(buffer[:part])
        with _products(lower=lower_products):
            for place, chance in _tiles(query * scale, candidates, buffer):
                parts = [
                    _into_shares(rows, largest_share, spare) for rows in torch.split(chance, part)
                ]
                value, partition = (torch.cat(columns) for columns in zip(*parts, strict=True))
                own = weight[place]
                total += (own * value).sum()
                pushed = (own * scale / partition)[:, None]
                of_query[place] = (chance @ candidates) * pushed
                of_candidates.addmm_(chance.T, query[place] * pushed)
        ctx.save_for_backward(of_query, of_candidates)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_query, of_candidates = ctx.saved_tensors
        return of_query * grad, of_candidates * grad, *(None,) * 5


def _into_shares(
    scores: Tensor, largest_share: float | None, spare: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Turn scores [T, N] into p, in place; return log Z [T], and by what rows are to be divided."""
    most = scores.amax(1, keepdim=True)
    scores.sub_(most).exp_()
    if largest_share is not None and spare is not None:
        value, total = limit_shares(scores, largest_share, spare[: len(scores)])
    else:
        total = scores.sum(1)
        value = total.log()
    return value + most[:, 0], total


def _tiles(query: Tensor, candidates: Tensor, buffer: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield tiles of queries with their scores [T, N], in `buffer`."""
    for start in range(0, len(query), len(buffer)):
        place = slice(start, min(start + len(buffer), len(query)))
        logits = buffer[: place.stop - place.start]
        torch.mm(query[place], candidates.T, out=logits)
        yield place, logits


@contextmanager
def _products(*, lower: bool) -> Iterator[None]:
    """Let float32 matrices be multiplied in bfloat16, if `lower`; leave the setting as it was."""
    before = torch.get_float32_matmul_precision()
    if lower:
        torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        if lower:
            torch.set_float32_matmul_precision(before)
