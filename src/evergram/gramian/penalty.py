"""The push away from every unobserved pair, as a quadratic form of two Gramians."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evergram.errors import ShapeError
from evergram.gramian.estimator import Moment


class _Quadratic(torch.autograd.Function):
    """mean μ (uᵀ (M + ρI) u − 2 uᵀ h) for a fixed symmetric M.

    Its gradient 2μ ((M + ρI) u − h)/B is known with its value: no second product for it, and no
    graph.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        moment: Moment,
        pulled: Tensor | None,
        weight: Tensor,
        ridge: float,
    ) -> Tensor:
        # In place, so that only the slope is written to memory.
        slope = moment.push(rows)
        if ridge:
            slope.add_(rows, alpha=ridge)
        scale = (weight * (2 / len(rows)))[:, None]
        flat = rows.flatten()
        if pulled is None:
            slope.mul_(scale)
            value = 0.5 * torch.dot(flat, slope.flatten())
        else:
            away = pulled * scale
            slope.mul_(scale).sub_(away)
            value = 0.5 * torch.dot(flat, slope.flatten()) - 0.5 * torch.dot(flat, away.flatten())
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return grad * slope, None, None, None, None


class BatchSide(NamedTuple):
    """One side of a batch, and the moment of all entities of that side.

    Args:
        embeddings: [B, D], not normalised.
        weights: [B], μ: the weights that the moment was built with.
        moment: Ĝ [D, D] and Ĥ [D, ≥K]; no gradient flows through it.
        prior: [B, K], each row's factors of the prior; None is the zero prior.
    """

    embeddings: Tensor
    weights: Tensor
    moment: Moment
    prior: Tensor | None = None


def quadratic_penalty(query: BatchSide, candidate: BatchSide, ridge: float = 0.0) -> Tensor:
    """Return ĝ = mean[ μ uᵀ (Ĝ_v u − 2 Ĥ_v q) + ν vᵀ (Ĝ_u v − 2 Ĥ_u r) ].

    Its gradient estimates without bias that of g = Σ_ab p_a q_b (⟨u_a, v_b⟩ − ⟨q_a, r_b⟩)².

    Args:
        query: u [B, D], μ, Ĝ_u and q.
        candidate: v [B′, D], ν, Ĝ_v and r; each side may have its own batch size.
        ridge: ρ, added to the diagonals of both Gramians: ρ mean[ μ ‖u‖² + ν ‖v‖² ] more, which
            costs less than the norms do by themselves.
    Returns: scalar. Its *value* is an estimate of 2(g − c), with c = Σ_ab p_a q_b ⟨q_a, r_b⟩².
    Raises: ShapeError: the dims differ.
    Source: [G2] Eq. (7), Prop. 1, App. B.
    """
    _check_dims(query, candidate)
    return _against(query, candidate.moment, ridge) + _against(candidate, query.moment, ridge)


def _against(side: BatchSide, other: Moment, ridge: float) -> Tensor:
    """One half of ĝ: this side's rows against the moment of the other."""
    prior = side.prior
    pulled = None if prior is None or not prior.shape[1] else other.pull(prior)
    value: Tensor = _Quadratic.apply(  # type: ignore[no-untyped-call]
        side.embeddings, other, pulled, side.weights, ridge
    )
    return value


def orthogonal_penalty(rows: Tensor, moment: Moment, weight: Tensor) -> Tensor:
    """Return 2 mean[ μ uᵀ Ĝ u ] while ⟨Ĝ, Ĝ⟩ > 1/D, else 0: it spreads one side over the sphere.

    Its gradient estimates that of max(⟨G, G⟩, 1/D), global orthogonal regularisation; its value is
    2⟨G, G⟩. 1/D is what rows of unit norm have when they are spread evenly: of other rows it means
    nothing.

    Args:
        rows: [B, D] of unit norm.
        moment: of the same side.
        weight: [B].
    Source: [G2] App. D, end; Zhang et al. 2017.
    """
    gramian = moment.gramian
    active = (gramian.square().sum() > 1 / len(gramian)).to(rows)
    value: Tensor = _Quadratic.apply(rows, moment, None, weight * active, 0.0)  # type: ignore[no-untyped-call]
    return 2 * value


def _check_dims(query: BatchSide, candidate: BatchSide) -> None:
    """Check that embeddings and moments of both sides have one dim. Raises: ShapeError."""
    rows = [side.embeddings.shape[-1] for side in (query, candidate)]
    moments = [side.moment.dim for side in (query, candidate)]
    if len({*rows, *moments}) > 1:
        raise ShapeError(
            f"Queries have dim {rows[0]}, candidates {rows[1]}, the Gramians {moments[0]} and "
            f"{moments[1]}; all must agree."
        )
