"""The penalty on all pairs as quadratic forms of two Gramians; preconditioners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evergram.errors import ShapeError
from evergram.gramian.estimator import Moment, beside


class _AgainstMatrix(torch.autograd.Function):
    """λ mean μ (uᵀ (M + ρI) u − 2 uᵀ H q) = λ ⟨S_B, (M + ρI, −2H)⟩ for a constant symmetric M; and
    the batch's moment S_B = mean μ u ⊗ (u, q), which estimators need next.

    The gradient 2λμ ((M + ρI) u − H q)/B reuses the weighted rows of S_B.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        factors: Tensor | None,
        matrix: Tensor,
        ridge: float,
        strength: float,
    ) -> tuple[Tensor, Tensor]:
        dim = rows.shape[1]
        share = (weight / len(rows))[:, None]
        weighted = rows * share
        moment = weighted.T @ (rows if factors is None else beside(rows, factors))
        form = matrix[:, : moment.shape[1]]
        if ridge or factors is not None:
            form = form.clone()
            form.diagonal().add_(ridge)
            form[:, dim:].mul_(-2)
        weighted_factors = None if factors is None else factors * share
        ctx.save_for_backward(weighted, weighted_factors, form)
        ctx.strength = strength
        ctx.mark_non_differentiable(moment)
        ctx.set_materialize_grads(False)  # no zero gradient for S_B
        return torch.dot(moment.flatten(), form.flatten()) * strength, moment

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad is None:  # nothing depends on the value
            return (None,) * 6
        weighted, weighted_factors, form = ctx.saved_tensors
        dim = weighted.shape[1]
        form = form * (grad * (2 * ctx.strength))
        gradient = weighted @ form[:, :dim]
        if weighted_factors is not None:
            gradient.addmm_(weighted_factors, form[:, dim:].T, alpha=0.5)
        return gradient, None, None, None, None, None


class _AgainstPairs(torch.autograd.Function):
    """Like `_AgainstMatrix`, for a moment stored as rows and without S_B."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        factors: Tensor | None,
        moment: Moment,
        ridge: float,
        strength: float,
    ) -> Tensor:
        scale = (weight * (strength / len(rows)))[:, None]
        half_gradient = moment.push(rows)
        if ridge:
            half_gradient.add_(rows, alpha=ridge)
        half_gradient.mul_(scale)
        value = torch.dot(rows.flatten(), half_gradient.flatten())
        if factors is not None:
            prior_term = moment.pull(factors).mul_(scale)
            value -= 2 * torch.dot(rows.flatten(), prior_term.flatten())
            half_gradient.sub_(prior_term)
        ctx.save_for_backward(half_gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (half_gradient,) = ctx.saved_tensors
        return half_gradient * (2 * grad), None, None, None, None, None


class BatchSide(NamedTuple):
    """One side of a batch, and the moment of all entities of that side."""

    embeddings: Tensor  # [B, D], not normalised
    weights: Tensor  # [B], μ, the weights with which the moment is estimated
    moment: Moment  # Ĝ [D, D] and Ĥ [D, ≥K]; no gradient flows through it
    prior: Tensor | None = None  # [B, K], each row's factors of the prior; None is the zero prior


class PenaltyOfBatch(NamedTuple):
    """λ ĝ of a batch, a scalar, and the batch's moments."""

    value: Tensor
    # S_B of each side, [D, D + K] with the prior's K, detached; None if the other side's moment is
    # stored as rows.
    query: Tensor | None
    candidate: Tensor | None


def quadratic_penalty(query: BatchSide, candidate: BatchSide, ridge: float = 0.0) -> Tensor:
    """Return ĝ = mean[ μ uᵀ (Ĝ_v u − 2 Ĥ_v q) + ν vᵀ (Ĝ_u v − 2 Ĥ_u r) ].

    Its gradient is an unbiased estimate of the gradient of
    g = Σ_ab p_a q_b (⟨u_a, v_b⟩ − ⟨q_a, r_b⟩)².

    Args:
        query: u [B, D], μ, Ĝ_u and q.
        candidate: v [B′, D], ν, Ĝ_v and r; B′ may differ from B.
        ridge: ρ, added to the diagonals of both Gramians. This adds ρ mean[ μ ‖u‖² + ν ‖v‖² ],
            faster than computing the norms separately.
    Returns: scalar. Its *value* estimates 2(g − c), with c = Σ_ab p_a q_b ⟨q_a, r_b⟩².
    Raises: ShapeError: the dims differ.
    Source: [G2] Eq. (7), Prop. 1, App. B.
    """
    return penalty_of_batch(query, candidate, ridge).value


def penalty_of_batch(
    query: BatchSide, candidate: BatchSide, ridge: float = 0.0, strength: float = 1.0
) -> PenaltyOfBatch:
    """Return λ ĝ, see `quadratic_penalty`, with λ = `strength`, and the moments of the batch.

    Raises: ShapeError: the dims differ.
    """
    rows = [side.embeddings.shape[-1] for side in (query, candidate)]
    moments = [side.moment.dim for side in (query, candidate)]
    if len({*rows, *moments}) > 1:
        raise ShapeError(
            f"Queries have dim {rows[0]}, candidates {rows[1]}, the Gramians {moments[0]} and "
            f"{moments[1]}; all must be equal."
        )
    query_value, query_moment = _against(query, candidate.moment, ridge, strength)
    candidate_value, candidate_moment = _against(candidate, query.moment, ridge, strength)
    return PenaltyOfBatch(query_value + candidate_value, query_moment, candidate_moment)


def _against(
    side: BatchSide, other: Moment, ridge: float = 0.0, strength: float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """Return one side's summand of λ ĝ, its rows against the other side's moment, and S_B."""
    factors = None if side.prior is None or not side.prior.shape[1] else side.prior
    rows = side.embeddings, side.weights, factors
    if other.matrix is None:
        value: Tensor = _AgainstPairs.apply(*rows, other, ridge, strength)  # type: ignore[no-untyped-call]
        return value, None
    value_and_moment: tuple[Tensor, Tensor] = _AgainstMatrix.apply(  # type: ignore[no-untyped-call]
        *rows, other.matrix.detach(), ridge, strength
    )
    return value_and_moment


def contributions(
    embeddings: Tensor, weights: Tensor, others: Sequence[Moment], strengths: Sequence[float]
) -> Tensor:
    """Return Σ_r λ_r μ_r uᵀ Ĝ_r u of each row, [P], without gradient, clamped at 0.

    Summed over a side with μ = p this is Σ_r λ_r g_r, without the prior's terms. Drawing rows in
    proportion to it makes the variance of the penalty's value zero.

    Args:
        embeddings: [P, D].
        weights: [P, R], μ of each of R measures.
        others: the other side's estimate under each measure.
        strengths: λ, one per measure.
    Source: docs/method.md, "Adaptive sampling".
    """
    with torch.no_grad():
        total = torch.zeros(len(embeddings), dtype=embeddings.dtype, device=embeddings.device)
        for weight, other, strength in zip(weights.unbind(1), others, strengths, strict=True):
            if strength:
                form = (other.push(embeddings) * embeddings).sum(1)
                total += strength * weight * form
        return total.clamp(min=0)


def preconditioner(moments: Sequence[Moment], weights: Sequence[float], ridge: float) -> Tensor:
    """Return P = (Ĝ/τ + ρ I)⁻¹ [D, D] for Ĝ = Σ_r λ_r Ĝ_r of the *other* side, with τ = tr Ĝ/D.

    The penalty's Hessian by u_a is 2 μ_a Σ_r λ_r Ĝ_v, the same for every entity up to a factor. It
    is steep along the direction of popularity, where only small steps are stable, and flat along
    all others. P g is Newton's direction for the penalty, with one P for all entities.

    Args:
        weights: λ_r; if all are zero, moments have equal weights.
        ridge: ρ, relative to the mean eigenvalue.
    Returns: P; the identity while Ĝ is zero.
    """
    dense = [m.gramian for m in moments]
    if not any(weights):
        weights = [1.0] * len(dense)
    total = torch.stack([w * g for w, g in zip(weights, dense, strict=True)]).sum(0)
    eye = torch.eye(len(total), dtype=total.dtype, device=total.device)
    mean = total.trace() / len(total)
    scaled = torch.where(mean > 0, total / mean, eye * (1 - ridge))
    # An estimate may be indefinite, for which Cholesky is a cheap test.
    factor, failed = torch.linalg.cholesky_ex(scaled + ridge * eye)
    if int(failed):
        if not bool(torch.isfinite(total).all()):
            return eye  # the loss is not finite either, which the training loop reports
        values, vectors = torch.linalg.eigh((scaled + scaled.T) / 2)
        clamped: Tensor = (vectors / (values.clamp(min=0) + ridge)) @ vectors.T
        return clamped
    inverse: Tensor = torch.cholesky_inverse(factor)
    return inverse
