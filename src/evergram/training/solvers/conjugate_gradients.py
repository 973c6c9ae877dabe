"""Preconditioned conjugate gradients on many small linear systems at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# A curvature that is negative by more than so much of A's size is no rounding.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Descent:
    """Where some steps have led.

    Args:
        solution: x, [B, D].
        gain: [B], by how much xᵀA x − 2 bᵀx has fallen; never below zero.
        endless: bool [B], whether a direction was met along which it has no minimum.
    """

    solution: Tensor
    gain: Tensor
    endless: Tensor


def descend(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    residual: Tensor,
    inverse: Tensor,
    size: Tensor,
    steps: int,
) -> Descent:
    """Return what so many steps make of `start` in B systems A x = b, each positive semi-definite.

    Every step is the exact minimum along its direction, so none raises xᵀA x − 2 bᵀx, and a row
    whose residual is zero stays.

    Args:
        product: gives A p [B, D] of p [B, D].
        start: x, [B, D]; residual: b − A x of it.
        inverse: [D, D], symmetric, near A⁻¹ but for a factor; all systems share it.
        size: [B], of the order of A's largest eigenvalue, or larger.
    Source: Hestenes and Stiefel 1952; Takács et al. 2011, for warm starts in matrix factorization.
    """
    solution, gain = start, torch.zeros_like(start[:, 0])
    endless = torch.zeros_like(gain, dtype=torch.bool)
    turned = residual @ inverse
    direction, slope = turned, (residual * turned).sum(1)
    for step in range(steps):
        moved = product(direction)
        curvature = (direction * moved).sum(1)
        if bool((curvature < 0).any()):
            endless |= curvature < -ROUNDING * size * direction.square().sum(1)
        # Without curvature there is no slope either, or both are rounding: the row stays.
        length = torch.where(curvature > 0, slope / curvature, 0.0)
        solution = torch.addcmul(solution, length[:, None], direction)
        gain = gain + length * slope
        if step + 1 == steps:
            break
        residual = torch.addcmul(residual, length[:, None], moved, value=-1)
        turned = residual @ inverse
        rest = (residual * turned).sum(1)
        ratio = torch.where(slope > 0, rest / slope, 0.0)
        direction, slope = torch.addcmul(turned, ratio[:, None], direction), rest
    return Descent(solution, gain, endless)
