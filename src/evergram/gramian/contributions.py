"""The share of each entity in the penalty on all pairs, by which adaptive sampling draws."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergram.gramian.estimator import Moment


def contributions(
    embeddings: Tensor, weights: Tensor, others: Sequence[Moment], strengths: Sequence[float]
) -> Tensor:
    """Return Σ_r λ_r μ_r uᵀ Ĝ_r u of each row, [P], without gradient and not below 0.

    Summed over a side with μ = p this is Σ_r λ_r g_r, without what a prior adds. Drawing rows in
    proportion to it gives the value of the penalty no variance.

    Args:
        embeddings: [P, D].
        weights: [P, R], μ of each of R measures.
        others: the other side's estimate under each measure.
        strengths: λ, one a measure.
    Source: docs/method.md, "Adaptive sampling".
    """
    with torch.no_grad():
        total = torch.zeros(len(embeddings), dtype=embeddings.dtype, device=embeddings.device)
        for weight, other, strength in zip(weights.unbind(1), others, strengths, strict=True):
            if strength:
                form = (other.push(embeddings) * embeddings).sum(1)
                total += strength * weight * form
        return total.clamp(min=0)
