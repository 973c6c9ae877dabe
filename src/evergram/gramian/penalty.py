"""The push away from every unobserved pair, as a quadratic form of two Gramians."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evergram.errors import ShapeError
from evergram.gramian.estimator import Moment


class _Quadratic(torch.autograd.Function):
    """mean μ (uᵀ M u − 2 uᵀ h) for a fixed symmetric M.

    Its gradient 2μ (M u − h)/B is known with its value: no second product for it, and no graph.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, moment: Moment, pulled: Tensor | None, weight: Tensor
    ) -> Tensor:
        # In place, so that of all this only the slope is written to memory.
        slope = moment.push(rows)
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
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return grad * slope, None, None, None


def quadratic_penalty(
    query: Tensor,
    candidate: Tensor,
    query_moment: Moment,
    candidate_moment: Moment,
    query_weight: Tensor,
    candidate_weight: Tensor,
    query_prior: Tensor | None = None,
    candidate_prior: Tensor | None = None,
) -> Tensor:
    """Return ĝ = mean[ μ uᵀ (Ĝ_v u − 2 Ĥ_v q) + ν vᵀ (Ĝ_u v − 2 Ĥ_u r) ].

    Its gradient estimates without bias that of g = Σ_ab p_a q_b (⟨u_a, v_b⟩ − ⟨q_a, r_b⟩)².

    Args:
        query, candidate: [B, D], not normalised; each side may have its own B.
        query_moment, candidate_moment: Ĝ [D, D] and Ĥ [D, ≥K]; no gradient flows through them.
        query_weight, candidate_weight: [B], μ and ν, the weights the moments were built with.
        query_prior, candidate_prior: [B, K], q and r; None is the zero prior.
    Returns: scalar. Its *value* is an estimate of 2(g − c), with c = Σ_ab p_a q_b ⟨q_a, r_b⟩².
    Raises: ShapeError: the dims differ.
    Source: [G2] Eq. (7), Prop. 1, App. B.
    """
    check_dims(query, candidate, query_moment, candidate_moment)
    sides = (
        (query, candidate_moment, query_weight, query_prior),
        (candidate, query_moment, candidate_weight, candidate_prior),
    )
    total: Tensor | None = None
    for rows, other, weight, prior in sides:
        pulled = None if prior is None or not prior.shape[1] else other.pull(prior)
        part: Tensor = _Quadratic.apply(rows, other, pulled, weight)  # type: ignore[no-untyped-call]
        total = part if total is None else total + part
    assert total is not None
    return total


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
    value: Tensor = _Quadratic.apply(rows, moment, None, weight * active)  # type: ignore[no-untyped-call]
    return 2 * value


def check_dims(query: Tensor, candidate: Tensor, *moments: Moment) -> None:
    """Check that embeddings and moments have one dim. Raises: ShapeError."""
    dim = query.shape[-1]
    dims = [m.matrix.shape[0] if m.matrix is not None else m.dense.shape[0] for m in moments]
    if {candidate.shape[-1], *dims} != {dim}:
        of = " and ".join(map(str, dims))
        raise ShapeError(
            f"Queries have dim {dim}, candidates {candidate.shape[-1]}, the Gramians {of}; "
            "all must agree."
        )
