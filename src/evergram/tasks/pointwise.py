"""Squared error on observed pairs, and the penalty on all others."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from evergram.data.sampling import Batch
from evergram.gramian.penalty import quadratic_penalty


@dataclass(frozen=True)
class Loss:
    """A batch's loss, to step on, and the value of the objective that it estimates, to report."""

    total: Tensor
    objective: Tensor


@dataclass(frozen=True)
class Pointwise:
    """mean ½(s − t)² + λ ĝ + l2 · mean(‖u‖² + ‖v‖²), with s = ⟨u, v⟩.

    Args:
        penalty: λ, dimensionless; 0 leaves the penalty out. The equal of implicit ALS with weight
            α₀ on all pairs is λ = ½ α₀ |A||B| / n, with the uniform measure.
        l2: weight of the squared norms of the batch.
    Source: [G2] §2 and Eq. (7).
    """

    penalty: float
    l2: float = 0.0

    def __call__(
        self,
        query: Tensor,
        candidate: Tensor,
        batch: Batch,
        query_gramian: Tensor,
        candidate_gramian: Tensor,
    ) -> Loss:
        """Loss of embeddings [B, D] and [B, D] under Gramians [D, D]."""
        score = (query * candidate).sum(-1)
        loss = 0.5 * (score - batch.target).square().mean()
        if self.l2:
            norms = query.square().sum(-1) + candidate.square().sum(-1)
            loss = loss + self.l2 * norms.mean()
        objective = loss.detach()
        if self.penalty:
            penalty = quadratic_penalty(
                query,
                candidate,
                query_gramian,
                candidate_gramian,
                batch.query_weight,
                batch.candidate_weight,
            )
            loss = loss + self.penalty * penalty
            # ĝ estimates 2g: its half is what the objective holds.
            objective = objective + self.penalty * 0.5 * penalty.detach()
        return Loss(loss, objective)
