"""The graph of interactions as a sparse matrix, and sums over its neighbours."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evergram.data.corpus import Corpus


def adjacency(corpus: Corpus, *, repeats: bool = False) -> Tensor:
    """Return the graph of a corpus: queries, then candidates, are its nodes and pairs its edges.

    Args:
        repeats: True makes an edge of each interaction, False of each distinct pair.
    Returns: sparse CSR [N, N] of ones, N = queries + candidates, with each edge in both directions.
        It is its own transpose, so that the backward pass costs no more than the forward one.
    """
    queries = len(corpus.queries)
    size = queries + len(corpus.candidates)
    pairs = corpus.column("query") * size + queries + corpus.column("candidate")
    if not repeats:
        pairs = torch.unique(pairs)
    start, end = pairs // size, pairs % size
    keys, _ = torch.sort(torch.cat([pairs, end * size + start]))
    offsets = torch.zeros(size + 1, dtype=torch.int32)
    torch.cumsum(torch.bincount(keys // size, minlength=size), 0, out=offsets[1:])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(
            # The kernels take int32, and would convert int64 at each product.
            offsets,
            (keys % size).int(),
            torch.ones(len(keys)),
            (size, size),
            check_invariants=False,
        )


def degrees(matrix: Tensor) -> Tensor:
    """Return the number of edges of each node, int32 [N]."""
    return matrix.crow_indices().diff()


class _Sum(torch.autograd.Function):
    """A x for a symmetric A; its gradient is A g, which needs no transpose."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, nodes: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix @ nodes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix @ grad.contiguous()


def neighbour_sum(matrix: Tensor, nodes: Tensor) -> Tensor:
    """Return Σ_{j ~ i} x_j, [N, D]."""
    total: Tensor = _Sum.apply(matrix.to(nodes.dtype), nodes)  # type: ignore[no-untyped-call]
    return total


def neighbour_mean(matrix: Tensor, nodes: Tensor) -> Tensor:
    """Return the mean of each node's neighbours, [N, D]; zeros for a node without any."""
    return neighbour_sum(matrix, nodes) / degrees(matrix).clamp(min=1).to(nodes)[:, None]


def neighbour_balanced(matrix: Tensor, nodes: Tensor) -> Tensor:
    """Return Σ_{j ~ i} x_j / √(deg i · deg j), [N, D]; zeros for a node without neighbours."""
    scale = degrees(matrix).clamp(min=1).to(nodes).rsqrt()[:, None]
    return neighbour_sum(matrix, nodes * scale) * scale
