"""Rows of unit norm, with one formula as their gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
