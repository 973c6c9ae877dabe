"""Each process's share of a batch's rows, of its gradient, and of the embeddings of all entities.

Each process's loss is a part of the whole batch's, and all parts add up to it, so that gradients
are summed. A mean over a share counts for its portion of the rows; what all of P processes compute
alike counts for 1/P.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from evergram.collectives import Collectives
from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch, Draw
from evergram.encoders.embedding_tables import ROWS
from evergram.encoders.encoder import Embeddings, Encoder, Scene
from evergram.encoders.features import SIDES
from evergram.encoders.module_encoder import ModuleEncoder
from evergram.encoders.row_encoder import RowEncoder

Rows = TypeVar("Rows", Batch, Draw, Tensor)


@dataclass(frozen=True)
class Part(Generic[Rows]):
    """The rows that a process has of `size` rows.

    Args:
        rows: its own; where it has none, the first of all stands in and counts for nothing.
        place: of its own rows among all.
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
    """Return a process's part of `size` rows that every process was given."""
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
    """Return the entities of a process's pairs with their embeddings [B, D], detached, by side."""
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

    Every process must compute the same from them, as an equal part of the loss.
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


# What a parameter has in a process where no gradient reached it, or a dense one.
NONE, DENSE = -1, -2


def sum_gradients(
    optimizers: Sequence[torch.optim.Optimizer], value: Tensor, collectives: Collectives
) -> Tensor:
    """Give every trained parameter the sum of the processes' gradients. Return the sum of `value`.

    Dense gradients are summed in one vector, together with `value`, a scalar. Of a sparse one the
    touched rows are gathered, or it is made dense and summed, whichever moves fewer bytes.
    """
    if collectives.size == 1:
        return value
    with torch.no_grad():
        owned = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        # Of a table that is divided by rows each process has the sum for its own.
        parameters = [p for p in owned if not getattr(p, "is_shard", False)]
        kinds = _kinds(parameters, collectives)
        dense = [p for p, kind in zip(parameters, kinds, strict=True) if kind == DENSE]
        for parameter, most in zip(parameters, kinds, strict=True):
            if most < 0:
                continue
            if gathers(parameter, most, collectives.size):
                own = parameter.grad if parameter.grad is not None else _no_rows(parameter)
                parameter.grad = collectives.sparse_rows(own, most, "tables")
            else:
                whole = parameter.grad
                made = torch.zeros_like(parameter) if whole is None else whole.to_dense()
                parameter.grad = collectives.sum(made, "tables")
        return _sum_dense(dense, value, collectives)


def gathers(parameter: Tensor, most: int, size: int) -> bool:
    """Return whether gathering at most `most` touched rows of each of P = `size` processes moves
    fewer bytes than summing a table [N, D]: by a ring a process receives (P − 1) · `most` rows with
    their ids, or 2 (P − 1)/P of the table."""
    row = parameter[0].numel() * parameter.element_size()
    return size * most * (row + 8) < 2 * len(parameter) * row


def _kinds(parameters: Sequence[nn.Parameter], collectives: Collectives) -> list[int]:
    """Return NONE, DENSE or the largest number of touched rows of each parameter."""
    kinds = []
    for parameter in parameters:
        if parameter.grad is None:
            kinds.append(NONE)
        elif not parameter.grad.is_sparse:
            kinds.append(DENSE)
        else:
            parameter.grad = parameter.grad.coalesce()
            kinds.append(parameter.grad.values().shape[0])
    device = parameters[0].device if parameters else None
    mine = torch.tensor([kinds], dtype=torch.int64, device=device)
    all_kinds = collectives.rows(mine, collectives.size, "counts")
    most: list[int] = all_kinds.amax(0).tolist()
    is_dense: list[bool] = (all_kinds == DENSE).any(0).tolist()
    return [DENSE if dense else count for dense, count in zip(is_dense, most, strict=True)]


def _no_rows(parameter: Tensor) -> Tensor:
    ids = torch.zeros(1, 0, dtype=torch.int64, device=parameter.device)
    values = parameter.new_zeros(0, *parameter.shape[1:])
    empty = torch.sparse_coo_tensor(ids, values, parameter.shape, check_invariants=False)
    return empty.coalesce()


def _sum_dense(
    parameters: Sequence[nn.Parameter], value: Tensor, collectives: Collectives
) -> Tensor:
    """Sum dense gradients and a scalar in one vector a dtype; return the scalar's sum."""
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for dtype in {g.dtype for g in grads} - {value.dtype}:
        others = [i for i, g in enumerate(grads) if g.dtype == dtype]
        flat = collectives.sum(torch.cat([grads[i].flatten() for i in others]), "layers")
        _hand_out(flat, [parameters[i] for i in others])
    same = [i for i, g in enumerate(grads) if g.dtype == value.dtype]
    parts = [value.detach().reshape(1), *(grads[i].flatten() for i in same)]
    flat = collectives.sum(torch.cat(parts), "layers")
    _hand_out(flat[1:], [parameters[i] for i in same])
    return flat[0]


def _hand_out(flat: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Set each parameter's gradient to its part of a vector."""
    parts = torch.split(flat, [p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter).clone()


def embed_together(
    encoder: Encoder, what: Corpus | Scene, together: Collectives
) -> dict[str, Tensor]:
    """Return what `encoder.embed_all(what)` does, the same numbers in every process.

    Where entities pass through layers one by one, each process embeds some of the blocks, and all
    blocks are exchanged. Tables are read, and graphs embedded, whole in every process.
    """
    most = _rows_at_once(encoder)
    if together.size == 1 or most is None or not has_layers(encoder):
        return encoder.embed_all(what)
    scene = what if isinstance(what, Scene) else encoder.read(what).to(encoder.device)
    vectors = {}
    with encoder.evaluating():
        embeddings = encoder.published(scene)
        for side in SIDES:
            size = scene.size(side)
            rows = torch.zeros(size, encoder.dim, device=encoder.device)
            blocks = [slice(start, min(start + most, size)) for start in range(0, size, most)]
            for block in blocks[together.share(len(blocks))]:
                ids = torch.arange(block.start, block.stop, device=encoder.device)
                rows[block] = embeddings.rows(side, ids)
            for block in blocks:  # one by one, so that no second copy of all is made
                rows[block] = together.sum(rows[block], "embeddings")
            vectors[side] = rows if isinstance(what, Scene) else rows.cpu()
    return vectors


def _rows_at_once(encoder: Encoder) -> int | None:
    """Return the rows of a block of `embed_all`; None if entities are not embedded one by one."""
    if isinstance(encoder, ModuleEncoder):
        return min(ROWS, encoder.encoder_modules.batch_size)
    return ROWS if isinstance(encoder, RowEncoder) else None


def has_layers(encoder: Encoder) -> bool:
    """Return whether an encoder has parameters beside tables, of which an entity reads a row."""
    tables = {id(m.weight) for m in encoder.modules() if isinstance(m, nn.Embedding)}
    return any(id(p) not in tables for p in encoder.parameters())
