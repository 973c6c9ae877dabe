"""The gradient of a whole batch, from those of its shares."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from evergram.collectives import Collectives

# What a parameter has in a process where no gradient reached it, or a dense one.
NONE, DENSE = -1, -2


def sum_gradients(
    optimizers: Sequence[torch.optim.Optimizer], value: Tensor, collectives: Collectives
) -> Tensor:
    """Give every trained parameter the sum of the processes' gradients.

    Dense gradients are summed in one vector, together with `value`. Of a sparse one the touched
    rows are gathered, or it is made dense and summed, whichever moves fewer bytes. A parameter that
    no process has a gradient of keeps none.

    Args:
        value: a scalar, the process's part of the objective.
    Returns: the sum of `value`.
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
    """Return whether gathering touched rows moves fewer bytes than summing a table [N, D].

    By a ring a process receives (P − 1) · `most` rows with their ids, or 2 (P − 1)/P of the table.

    Args:
        most: rows that a process touched, at most.
        size: P.
    """
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
