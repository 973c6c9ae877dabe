"""Candidates that the same queries met, to which a pair's pull may be spread."""

from __future__ import annotations

import logging
import warnings
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

log: logging.Logger = logging.getLogger(__name__)

# Similarities [rows, N] that are in memory at once.
BLOCK = 1 << 24
# Candidates beyond which comparing each with all others is said to take long.
MANY = 200_000
# Of a matrix in compressed rows.
PARTS = ("starts", "columns", "values")


class CandidateNeighbours(nn.Module):
    """The k candidates nearest to each by the queries that they share, with shares that sum to one.

    The similarity of b and c is n_c^-½ Σ n_a^-½ over the queries a that met both, with the counts
    n of distinct pairs: a cosine without n_b^-½, which is the same in a row, to which a shared
    query counts n_a^-½.

    Args:
        nearest: int64 [N, k], rows of candidates.
        share: float [N, k]; rows sum to one. A candidate that shares no query is its own neighbour.
    """

    def __init__(self, nearest: Tensor, share: Tensor) -> None:
        super().__init__()
        size, k = nearest.shape
        near, values = nearest.flatten(), share.flatten()
        order = torch.argsort(near, stable=True)
        parts = (
            *(k * torch.arange(size + 1), near, values),
            *(_starts(near, size), order // k, values[order]),  # of the transpose
        )
        names = (*PARTS, *(f"back_{part}" for part in PARTS))
        for name, part in zip(names, parts, strict=True):
            self.register_buffer(name, part, persistent=False)

    @classmethod
    def of(cls, query: Tensor, candidate: Tensor, queries: int, candidates: int, k: int) -> Self:
        """Return the neighbours of a corpus; pairs count once, however often they were observed.

        Args:
            query, candidate: int64 [P], rows of pairs.
            queries, candidates: how many there are.
            k: of each candidate; fewer where there are fewer others.
        """
        if candidates > MANY:
            log.warning(
                f"task.neighbour_share compares each of {candidates:,} candidates with all others "
                "before the first step, which takes long; set it to 0 to train without neighbours."
            )
        key = torch.unique(query * candidates + candidate)
        query, candidate = key // candidates, key % candidates
        counts = [
            torch.bincount(rows, minlength=size).clamp(min=1).float()
            for rows, size in ((query, queries), (candidate, candidates))
        ]
        met = _csr(
            _starts(query, queries), candidate, counts[0].rsqrt()[query], (queries, candidates)
        )
        order, ends = torch.argsort(candidate, stable=True), _starts(candidate, candidates)
        k = max(1, min(k, candidates - 1))
        nearest = torch.empty(candidates, k, dtype=torch.int64)
        share = torch.empty(candidates, k)
        rows = max(1, BLOCK // candidates)
        for start in range(0, candidates, rows):
            stop = min(start + rows, candidates)
            pairs = order[ends[start] : ends[stop]]
            places = ends[start : stop + 1] - ends[start]
            block = _csr(places, query[pairs], torch.ones(len(pairs)), (stop - start, queries))
            alike = torch.sparse.mm(block, met).to_dense().mul_(counts[1].rsqrt())
            own = torch.arange(stop - start)
            alike[own, own + start] = 0.0
            values, nearest[start:stop] = alike.topk(k, dim=1)
            total = values.sum(1, keepdim=True)
            share[start:stop] = values / total.clamp(min=1e-30)
            alone = torch.nonzero(total[:, 0] == 0)[:, 0] + start
            nearest[alone, 0], share[alone, 0] = alone, 1.0
        return cls(nearest, share)

    def forward(self, rows: Tensor) -> Tensor:
        """Return Σ_c K_bc rows_c, [N, D]; differentiable."""
        there, back = ([getattr(self, side + part) for part in PARTS] for side in ("", "back_"))
        spread: Tensor = _Sums.apply(rows, there, back)  # type: ignore[no-untyped-call]
        return spread


class _Sums(torch.autograd.Function):
    """K X, whose gradient is Kᵀ times that of the product: both are sums of rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: list[Tensor], back: list[Tensor]) -> Tensor:
        ctx.back = back
        return _sums(rows, *there)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _sums(grad, *ctx.back), None, None


def _sums(rows: Tensor, starts: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Return the weighted sums of rows that a sparse matrix says; faster than the product."""
    return functional.embedding_bag(
        columns,
        rows.contiguous(),
        starts,
        mode="sum",
        per_sample_weights=values.to(rows),
        include_last_offset=True,
    )


def _starts(rows: Tensor, size: int) -> Tensor:
    """Return where the entries of each row begin, and the last one ends, int64 [size + 1]."""
    starts = torch.zeros(size + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(rows, minlength=size), 0, out=starts[1:])
    return starts


def _csr(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a sparse matrix of entries that are ordered by row."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)
