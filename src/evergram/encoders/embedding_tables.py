"""Tables of embeddings: drawn, looked up, joined from blocks, and of rows of unit norm."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from evergram.encoders.mapped_tensors import mapped_zeros

# Entities, or rows of a table, that are embedded, read or drawn at once.
ROWS = 65_536


def join_blocks(
    blocks: Iterable[Tensor], size: int, dim: int, folder: Path | None = None
) -> Tensor:
    """Return blocks [b, D] of `size` rows in all as one tensor, [N, D].

    Each is copied as it comes: beside the result only one block is in memory.

    Args:
        folder: where a result of several blocks is mapped from a file; None keeps it in memory.
    """
    joined: Tensor | None = None
    start = 0
    for block in blocks:
        if len(block) == size:
            return block
        if joined is None:
            shape = size, dim
            joined = block.new_empty(shape) if folder is None else mapped_zeros(shape, folder)
        joined[start : start + len(block)] = block
        start += len(block)
    return torch.zeros(0, dim) if joined is None else joined


def embedding_table(
    size: int, dim: int, scale: float, generator: torch.Generator, folder: Path | None = None
) -> nn.Embedding:
    """Return a table [size, dim] of N(0, scale²) rows whose gradient has only the rows it read.

    Args:
        folder: where it is mapped from a file, with the same numbers; None keeps it in memory.
    """
    if folder is not None:
        weight = mapped_zeros((max(size, 1), dim), folder)
        draw_normal(weight, scale, generator)
        return nn.Embedding(len(weight), dim, sparse=True, _weight=weight)
    table = nn.Embedding(max(size, 1), dim, sparse=True)
    nn.init.normal_(table.weight, std=scale, generator=generator)
    return table


def draw_normal(table: Tensor, scale: float, generator: torch.Generator) -> None:
    """Fill a table [N, D] with the numbers N(0, scale²) that one draw of all of it would give.

    It goes over the table once, block by block, as a draw of all would go over it several times:
    of a table that is larger than memory each time is one of reading and writing the disk.
    """
    # torch draws sixteen numbers at a time, and the last sixteen anew where some are left over.
    ends = [*range(ROWS, len(table) - ROWS + 1, ROWS), len(table)]
    for start, end in pairwise([0, *ends]):
        nn.init.normal_(table[start:end], std=scale, generator=generator)


def look_up(table: nn.Embedding, ids: Tensor, *, has_all: bool = False) -> Tensor:
    """Return rows of a table for ids [B], as [B, dim]; zeros for the id -1.

    Args:
        has_all: no id is -1, which saves a pass over the rows and one over their gradient.
    """
    if has_all:
        known: Tensor = table(ids)
        return known
    rows: Tensor = table(ids.clamp(min=0))
    return rows * (ids >= 0).unsqueeze(-1)


# Shorter rows are divided by this, so that one of zeros stays as it is.
LEAST_NORM = 1e-12


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows [N, D] divided by their norms; rows of zeros stay as they are.

    It is torch's `normalize`, whose gradient takes a pass and a matrix of its own for each of its
    operations: of all candidates' rows, a large part of a softmax's step.
    """
    unit: Tensor = _UnitRows.apply(rows)  # type: ignore[no-untyped-call]
    return unit


class _UnitRows(torch.autograd.Function):
    """y = x/‖x‖; ∂/∂x = (g − y ⟨y, g⟩)/‖x‖."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_(min=LEAST_NORM)
        unit: Tensor = rows / norms
        ctx.save_for_backward(unit, norms)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        unit, norms = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, unit).unsqueeze(-1)
        across: Tensor = torch.addcmul(grad, unit, along, value=-1)
        across.div_(norms)
        return across
