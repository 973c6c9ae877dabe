"""Tables of embeddings: drawn, looked up, and joined from blocks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

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
