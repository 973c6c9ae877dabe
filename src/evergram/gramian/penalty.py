"""The push away from every unobserved pair, as a quadratic form of two Gramians."""

from __future__ import annotations

from torch import Tensor

from evergram.errors import ShapeError


def quadratic_penalty(
    query: Tensor,
    candidate: Tensor,
    query_gramian: Tensor,
    candidate_gramian: Tensor,
    query_weight: Tensor,
    candidate_weight: Tensor,
) -> Tensor:
    """ĝ = mean[ μ uᵀ Ĝ_v u + ν vᵀ Ĝ_u v ]: its gradient estimates that of g without bias.

    Args:
        query, candidate: [B, D], not normalised.
        query_gramian, candidate_gramian: [D, D], symmetric; no gradient flows through them.
        query_weight, candidate_weight: [B], μ and ν, the weights the Gramians were built with.
    Returns: scalar. Its *value* is an estimate of 2g, not of g = Σ_ab p_a q_b ⟨u_a, v_b⟩².
    Raises: ShapeError: the dims differ.
    Source: [G2] Eq. (7), Prop. 1.
    """
    dim = query.shape[-1]
    shapes = {candidate.shape[-1], *query_gramian.shape, *candidate_gramian.shape}
    if shapes != {dim}:
        raise ShapeError(
            f"Queries have dim {dim}, candidates {candidate.shape[-1]}, the Gramians "
            f"{tuple(query_gramian.shape)} and {tuple(candidate_gramian.shape)}; all must agree."
        )
    of_queries = ((query @ candidate_gramian.detach()) * query).sum(-1) * query_weight
    of_candidates = ((candidate @ query_gramian.detach()) * candidate).sum(-1) * candidate_weight
    return of_queries.mean() + of_candidates.mean()
