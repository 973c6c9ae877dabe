"""Rows of one side in groups, each with its pairs as a rectangle that a processor's cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Pairs that a row counts for at least: a group of rows with few has temporaries of its own.
FEWEST = 4


@dataclass(frozen=True)
class RowGroup:
    """Entities of about the same number of pairs.

    Args:
        rows: int64 [B].
        partners: int32 [B, M], rows of the other side; 0 beyond an entity's own pairs.
        pull: [B, M], h of each pair, and `wanted`, t; 0 beyond an entity's own.
        longest: pairs of the entity that has the most.
    """

    rows: Tensor
    partners: Tensor
    pull: Tensor
    wanted: Tensor
    longest: int


def row_groups(
    rows: Tensor, partners: Tensor, pull: Tensor, wanted: Tensor, entities: int, pairs: int
) -> Iterator[RowGroup]:
    """Yield every entity of a side once, those with the most pairs first.

    Args:
        rows, partners: int64 [n], the entities of each pair, of this side and of the other.
        pull, wanted: [n], numbers of each pair.
        entities: of this side, those without a pair included.
        pairs: that a group has at most, unless one entity alone has more.
    """
    order = torch.argsort(rows, stable=True)
    counts = torch.bincount(rows, minlength=entities)
    starts = counts.cumsum(0) - counts
    by_count = torch.argsort(counts, descending=True, stable=True)
    lengths = counts[by_count].tolist()
    partners, pull, wanted = partners.int()[order], pull[order], wanted[order]
    begun = 0
    while begun < entities:
        longest = lengths[begun]
        size = max(1, pairs // max(longest, FEWEST))
        members = by_count[begun : begun + size]
        begun += size
        steps = torch.arange(max(1, longest), device=rows.device)
        real = steps < counts[members, None]
        places = torch.where(real, starts[members, None] + steps, 0)
        yield RowGroup(
            members,
            torch.where(real, partners[places], 0),
            torch.where(real, pull[places], 0.0),
            torch.where(real, wanted[places], 0.0),
            longest,
        )
