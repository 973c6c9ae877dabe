"""Shares of a batch: the rows that one process embeds, and what they count for in the loss.

Each process's loss is a part of the whole batch's, and all parts add up to it, so that gradients
are summed whatever the terms are. A mean over a share counts for its part of the rows; what every
process computes alike counts for one part in as many as there are processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evergram.collectives import Collectives
from evergram.data.sampling import Batch, Draw
from evergram.encoders.encoder import Embeddings

Rows = TypeVar("Rows", Batch, Draw, Tensor)


@dataclass(frozen=True)
class Part(Generic[Rows]):
    """The rows that a process has of `size` rows.

    Args:
        rows: its own; where it has none, the first of all stands in and counts for nothing.
        size: the number of all processes' rows.
        place: of its own among them.
        portion: what its own count for in a mean over all.
    """

    rows: Rows
    size: int
    place: slice
    portion: float

    def counted(self, weights: Tensor) -> Tensor:
        """Return weights of its rows as they are, or zero if a row only stands in."""
        return weights if self.portion else torch.zeros_like(weights)


def part_of(rows: Rows, size: int, collectives: Collectives) -> Part[Rows]:
    """Return a process's part of rows that every process was given.

    Args:
        size: the number of rows.
    """
    if collectives.size == 1:
        return Part(rows, size, slice(None), 1.0)
    place = collectives.share(size)
    count = place.stop - place.start
    own = place if count else slice(0, 1)
    return Part(_cut(rows, own), size, own, count / max(1, size))


def _cut(rows: Any, place: slice) -> Any:
    """Return some rows of a tensor, or of each tensor in a record."""
    if isinstance(rows, Tensor):
        return rows[place]
    values = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return replace(rows, **{n: v if v is None else v[place] for n, v in values.items()})


def learned_from(
    own: Part[Batch], query: Tensor, candidate: Tensor
) -> dict[str, tuple[Part[Draw], Tensor]]:
    """Return the entities of a process's pairs with their embeddings, detached, by side.

    Args:
        query, candidate: [B, D], of its own pairs, or of all.
    """
    pairs = own.rows
    sides = {
        "query": (Draw(pairs.query, pairs.query_weight), query.detach()),
        "candidate": (Draw(pairs.candidate, pairs.candidate_weight), candidate.detach()),
    }
    return {
        side: (
            Part(draw, own.size, own.place, own.portion),
            rows if len(rows) == len(draw.ids) else rows[own.place],
        )
        for side, (draw, rows) in sides.items()
    }


class _AllRows(torch.autograd.Function):
    """Gathers rows for a loss that every process computes alike, each for its equal part of it."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, count: int, collectives: Collectives) -> Tensor:
        ctx.place, ctx.rows, ctx.size = collectives.share(count), len(mine), collectives.size
        return collectives.rows(mine, count, "rows")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        # All processes have the same gradient, of an equal part of the loss: no exchange is needed.
        own = grad[ctx.place] * ctx.size
        missing = ctx.rows - len(own)  # rows that stand in
        return torch.cat([own, own.new_zeros(missing, *own.shape[1:])]), None, None


def rows_of_all(mine: Tensor, count: int, collectives: Collectives) -> Tensor:
    """Return the rows [count, D] of all processes, differentiable.

    What is computed of them must be the same in every process, and count for an equal part of the
    loss.
    """
    rows: Tensor = _AllRows.apply(mine, count, collectives)  # type: ignore[no-untyped-call]
    return rows


class WholeRows(Embeddings):
    """Embeddings of which each process computes a share of the rows and is given all of them."""

    def __init__(self, embeddings: Embeddings, collectives: Collectives) -> None:
        self.embeddings = embeddings
        self.collectives = collectives

    def rows(self, side: str, ids: Tensor) -> Tensor:
        if self.whole(side) is not None:
            return self.embeddings.rows(side, ids)  # every process has embedded all entities
        own = part_of(ids, len(ids), self.collectives)
        return rows_of_all(self.embeddings.rows(side, own.rows), len(ids), self.collectives)

    def of_pairs(self, query: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.whole("query") is not None:
            return self.embeddings.of_pairs(query, candidate)
        count = len(query)
        own = (part_of(ids, count, self.collectives).rows for ids in (query, candidate))
        rows, without = self.embeddings.of_pairs(*own)
        rows = rows_of_all(rows, count, self.collectives)
        return rows, None if without is None else rows_of_all(without, count, self.collectives)

    def blocks(self, side: str, batch_size: int = 65_536) -> Iterator[Tensor]:
        return self.embeddings.blocks(side, batch_size)

    def whole(self, side: str) -> Tensor | None:
        return self.embeddings.whole(side)
