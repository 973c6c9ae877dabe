"""The mean of squared norms, with its gradient in one pass over the rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def mean_squared_norm(rows: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return mean μ ‖x‖² over rows x, a scalar; differentiable once, by the rows.

    Args:
        rows: [..., D].
        weight: μ, [...]; None is one for each row.
    """
    value: Tensor = _MeanSquaredNorm.apply(rows, weight)  # type: ignore[no-untyped-call]
    return value


class _MeanSquaredNorm(torch.autograd.Function):
    """Saves the rows themselves: autograd's own square, sum and mean write each of theirs."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor | None) -> Tensor:
        count = rows.numel() // rows.shape[-1]
        ctx.save_for_backward(rows, weight)
        if weight is None:
            flat = rows.flatten()
            return torch.dot(flat, flat) / count
        squares = torch.linalg.vector_norm(rows, dim=-1).square()
        return torch.dot(squares.flatten(), weight.to(squares).flatten()) / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows, weight = ctx.saved_tensors
        scale = grad * (2 / (rows.numel() // rows.shape[-1]))
        return rows * (scale if weight is None else (weight.to(rows) * scale)[..., None]), None
