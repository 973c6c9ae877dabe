"""The inverse Gramian as a preconditioner: near it, the penalty is equally steep everywhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergram.gramian.estimator import Moment


def preconditioner(moments: Sequence[Moment], weights: Sequence[float], ridge: float) -> Tensor:
    """Return P = (Ĝ/τ + ρ I)⁻¹ [D, D] of Ĝ = Σ_r λ_r Ĝ_r of the *other* side, with τ = tr Ĝ/D.

    The penalty's Hessian by u_a is 2 μ_a Σ_r λ_r Ĝ_v, the same for every entity but for a factor,
    and steep along the direction of popularity: a gradient step that suits it is too short for all
    others. P g is Newton's direction for the penalty, and all entities share one P.

    Args:
        weights: λ_r; where all are zero every moment weighs the same.
        ridge: ρ, relative to the mean eigenvalue.
    Returns: P; the identity while there is no Gramian.
    """
    dense = [m.gramian for m in moments]
    if not any(weights):
        weights = [1.0] * len(dense)
    total = torch.stack([w * g for w, g in zip(weights, dense, strict=True)]).sum(0)
    eye = torch.eye(len(total), dtype=total.dtype, device=total.device)
    mean = total.trace() / len(total)
    scaled = torch.where(mean > 0, total / mean, eye * (1 - ridge))
    # An estimate need not be positive semi-definite, and Cholesky's test is cheap.
    factor, failed = torch.linalg.cholesky_ex(scaled + ridge * eye)
    if int(failed):
        if not bool(torch.isfinite(total).all()):
            return eye  # the loss is no longer finite, and the loop will say so
        values, vectors = torch.linalg.eigh((scaled + scaled.T) / 2)
        turned: Tensor = (vectors / (values.clamp(min=0) + ridge)) @ vectors.T
        return turned
    inverse: Tensor = torch.cholesky_inverse(factor)
    return inverse
