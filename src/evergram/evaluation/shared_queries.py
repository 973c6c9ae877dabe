"""Metrics of queries that several processes measure together, each a share of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from evergram.collectives import Collectives
from evergram.errors import ShapeError

NOT_FINITE = "A score is not finite; an embedding holds NaN or infinity."


def measured_by_all(
    measured: Callable[[Tensor], dict[str, Tensor]],
    blocks: Iterable[Tensor],
    names: Sequence[str],
    together: Collectives,
) -> Iterator[dict[str, Tensor]]:
    """Yield the metrics of each block's queries, of which each process has measured some blocks.

    Blocks are those of one process, so that a query's metrics are computed by the same products of
    the same shapes, and are the same bit by bit.

    Args:
        measured: returns the metrics of a block, float64 [b] each; or raises ShapeError where a
            score is not finite.
        blocks: int64 [b] each, the places of queries; in order, and together all of them.
        names: of the metrics.
        together: processes that each call this with the same blocks.
    Raises: ShapeError: one of the processes' `measured` did; all raise it.
    """
    if together.size == 1:
        yield from map(measured, blocks)
        return
    blocks = list(blocks)
    # Each number is of one process, and the others add zero to it.
    values = torch.zeros(len(names), sum(map(len, blocks)), dtype=torch.float64)
    failure: ShapeError | None = None
    try:
        for block in blocks[together.share(len(blocks))]:
            own = measured(block)
            values[:, block] = torch.stack([own[name] for name in names])
    except ShapeError as error:
        failure = error
        values.fill_(torch.nan)  # so that no process waits for this one
    values = together.sum(values, "metrics")
    if bool(values.isnan().any()):
        raise ShapeError(NOT_FINITE) from failure
    for block in blocks:
        yield dict(zip(names, values[:, block], strict=True))
