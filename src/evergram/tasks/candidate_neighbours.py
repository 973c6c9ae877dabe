"""Candidates that the same queries met, to which a pair's pull may be spread."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# Similarities that are in memory at once.
BLOCK = 1 << 24
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
        key = torch.unique(query * candidates + candidate)
        query, candidate = key // candidates, key % candidates
        of_query = torch.bincount(query, minlength=queries)
        counts = torch.bincount(candidate, minlength=candidates)
        met = _csr(
            _starts(query, queries), candidate, of_query[query].rsqrt(), (queries, candidates)
        )
        order, ends = torch.argsort(candidate, stable=True), _starts(candidate, candidates)
        # Of each candidate, how many others share a query with it, at most.
        most = torch.zeros(candidates, dtype=torch.int64)
        most = most.index_add_(0, candidate, of_query[query]).clamp_(max=candidates)
        k = max(1, min(k, candidates - 1))
        nearest = torch.empty(candidates, k, dtype=torch.int64)
        share = torch.empty(candidates, k)
        scale = counts.clamp(min=1).rsqrt()
        for own in _blocks(most.clamp_(min=k)):
            starts = functional.pad(counts[own].cumsum(0), (1, 0))
            # The places of the pairs of each candidate, one candidate after the other.
            first = torch.repeat_interleave(ends[own] - starts[:-1], counts[own])
            pairs = order[torch.arange(len(first)) + first]
            block = _csr(starts, query[pairs], torch.ones(len(pairs)), (len(own), queries))
            alike = torch.sparse.mm(block, met)
            values, nearest[own] = _greatest(alike, own, scale, k)
            total = values.sum(1, keepdim=True)
            share[own] = values / total.clamp(min=1e-30)
            alone = own[total[:, 0] == 0]
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


def _blocks(most: Tensor) -> Iterator[Tensor]:
    """Yield rows in parts whose number times the greatest of their `most` is at most `BLOCK`."""
    order = torch.argsort(most, stable=True)
    start = 0
    while start < len(order):
        rows = BLOCK // int(most[order[start]])
        last = order[min(start + max(rows, 1), len(order)) - 1]
        stop = start + max(1, BLOCK // int(most[last]))
        yield order[start:stop]
        start = stop


def _greatest(alike: Tensor, own: Tensor, scale: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k greatest entries of each row of a sparse matrix, and their columns.

    Args:
        alike: [rows, N] in compressed rows; an entry counts `scale` of its column.
        own: the column of each row that is left out.
    """
    starts, columns = alike.crow_indices(), alike.col_indices()
    lengths = starts.diff()
    row = torch.repeat_interleave(torch.arange(len(own)), lengths)
    place = torch.arange(len(columns)) - starts[row]
    values = alike.values() * scale[columns]
    values[columns == own[row]] = 0.0
    # Entries side by side; where there are less than k, zeros of no column in particular.
    shape = len(own), max(k, int(lengths.max()))
    beside = torch.zeros(shape)
    beside[row, place] = values
    greatest, chosen = beside.topk(k, dim=1)
    at = torch.zeros(shape, dtype=torch.int64)
    at[row, place] = columns
    return greatest, at.gather(1, chosen)


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
