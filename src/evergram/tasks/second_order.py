"""Softmax over all candidates, to second order in the scores."""

from __future__ import annotations

from torch import Tensor

from evergram.data.sampling import Batch
from evergram.tasks.task import Encoded, Moments, Task, score


class SecondOrderSoftmax(Task):
    """The softmax over all candidates, its log-partition expanded to second order.

    log Σ_b q_b e^{s_b} ≈ ⟨u, v̄⟩ + ½ uᵀ(G_v − v̄ v̄ᵀ)u, so that a pair costs −s + that. The gradient
    reaches candidates through the same moments of the queries: ⟨ū, v⟩ + ½ (v − v̄)ᵀ G_u (v − v̄).
    The queries' measure should be that of examples, or queries weigh otherwise than their pairs.

    Args:
        temperature: τ; the scores are ⟨u, v⟩/τ.
        centred: False drops v̄ v̄ᵀ, which is a constant prior of −1 (RG²).
    Source: docs/method.md, "Second-order softmax".
    """

    wants_means = True
    is_mean_of_pairs = True

    def __init__(self, temperature: float = 1.0, centred: bool = True) -> None:
        super().__init__()
        self.temperature = temperature
        self.centred = centred

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        of_queries, of_candidates = moments["query"][0], moments["candidate"][0]
        query_mean = of_queries.cross[:, -1].detach()
        candidate_mean = of_candidates.cross[:, -1].detach()
        scale = 1 / self.temperature
        query, candidate = encoded.query, encoded.candidate
        first = query @ candidate_mean
        second = (query @ of_candidates.gramian.detach() * query).sum(-1)
        if self.centred:
            second = second - first.square()
        weight = batch.query_weight[:, 0]
        loss = -scale * score(encoded).mean()
        value = (weight * (scale * first + 0.5 * scale**2 * second)).mean()
        # The same sum by the candidates: its gradient counts, and its value is taken off.
        moved = candidate - candidate_mean if self.centred else candidate
        pushed = (moved @ of_queries.gramian.detach() * moved).sum(-1)
        drawn = scale * (candidate @ query_mean) + 0.5 * scale**2 * pushed
        other = (batch.candidate_weight[:, 0] * drawn).mean()
        return loss + value + other - other.detach()
