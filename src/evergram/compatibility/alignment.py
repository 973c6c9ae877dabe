"""What holds a new version to the old ones while it trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

LambdaUnit = Literal["norm", "paper"]


def history_metric(matrices: Sequence[Tensor], dim: int) -> Tensor:
    """S_{k-1}, float64 [D_{k-1}, D_{k-1}]: all of history in one matrix.

    S_0 = I and S_i = I + W_iᵀ S_{i-1} W_i, so that δᵀ S_{k-1} δ = Σ_{j<k} ‖W_{k-1}^j δ‖² and the
    cost of the multi-step loss does not grow with the number of versions.

    Args:
        matrices: W_1 … W_{k-1}, W_i of [D_{i-1}, D_i].
        dim: D_0.
    """
    metric = torch.eye(dim, dtype=torch.float64)
    for matrix in matrices:
        wide = matrix.detach().double().cpu()
        metric = torch.eye(wide.shape[1], dtype=torch.float64) + wide.T @ metric @ wide
    return metric


def alignment_weight(value: float, unit: LambdaUnit, old_dim: int) -> float:
    """λ on mean ‖δ‖².

    The authors' code sums three means over batch *and* dims (users, positive and negative items),
    so its λ is 3λ/D_{k-1} of ours. unit="norm" is λ on mean ‖δ‖² itself; "paper" is theirs.
    """
    return value if unit == "norm" else 3 * value / old_dim


def alignment_loss(
    transformed: Tensor, past: Tensor, weight: Tensor, metric: Tensor, versions: int
) -> Tensor:
    """(1/k) mean δᵀ S_{k-1} δ, the multi-step loss; with S = I and k = 1 the single-step one.

    Args:
        transformed: [B, D_{k-1}], B_k(z_k).
        past: [B, D_{k-1}], z_{k-1} in evaluation mode; no gradient flows through it.
        weight: [B], 1 where the object takes part and 0 where version k-1 cannot know it or it is
            held out; the mean is over those that take part.
        metric: [D_{k-1}, D_{k-1}], S_{k-1} from `history_metric`.
        versions: k, how many past versions there are.
    Source: [BC] Eq. (7), (10).
    """
    delta = transformed - past.detach()
    squared = ((delta @ metric.to(delta)) * delta).sum(-1) * weight
    return squared.sum() / weight.sum().clamp(min=1) / versions
