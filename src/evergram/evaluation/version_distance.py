"""Measure the distance of a version, read as a past one, from that past version."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.errors import ShapeError
from evergram.evaluation.score_blocks import best_candidates


def drift(transformed: Tensor, past: Tensor) -> dict[str, float]:
    """Return the mean distance of embeddings z̃_j from past ones z_j, both [N, D_j].

    Returns: "l2", the mean of ‖z̃_j − z_j‖₂, and "relative", that over the mean of ‖z_j‖₂; NaN if N
        is 0.
    Source: [BC] §5, metric 3.
    """
    _check(transformed, past)
    distance = (transformed - past).norm(dim=-1).mean()
    return {"l2": float(distance), "relative": float(distance / past.norm(dim=-1).mean())}


def overlap(
    transformed_query: Tensor,
    transformed_candidate: Tensor,
    past_query: Tensor,
    past_candidate: Tensor,
    k: int = 10,
) -> float:
    """Return the mean share of a query's k best candidates that z̃_j and z_j have in common.

    Args:
        transformed_query, past_query: [Q, D]; transformed_candidate, past_candidate: [N, D].
    Returns: in [0, 1]; NaN if Q or N is 0.
    """
    _check(transformed_query, past_query)
    _check(transformed_candidate, past_candidate)
    total, n = len(past_query), len(past_candidate)
    if not total or not n:
        return float("nan")
    k = min(k, n)
    new = best_candidates(transformed_query, transformed_candidate, k)
    old = best_candidates(past_query, past_candidate, k)
    both = torch.cat([new, old], dim=1).sort(dim=1).values
    return int((both[:, 1:] == both[:, :-1]).sum()) / (total * k)


def as_dim(embeddings: Tensor, dim: int) -> Tensor:
    """Return the first `dim` coordinates, [N, dim], padded with zeros if there are fewer.

    A consumer that does not know of versions reads other embeddings in this way.
    """
    missing = dim - embeddings.shape[-1]
    return torch.nn.functional.pad(embeddings, (0, missing)) if missing else embeddings


def _check(transformed: Tensor, past: Tensor) -> None:
    if transformed.shape != past.shape:
        raise ShapeError(
            f"Transformed embeddings are {list(transformed.shape)} and past ones "
            f"{list(past.shape)}; they must be of the same objects and dim."
        )
