"""The observed candidate against the others: those of the batch, or all, to second order."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.sampling import Batch
from evergram.tasks.task import Encoded, Moments, Task, score


class StreamedFrequency(torch.nn.Module):
    """How likely a candidate is to be in a batch, learned as batches pass.

    For each candidate the mean number of batches between two that hold it, as an average that
    forgets with `rate` once it has seen 1/rate of them; the chance is its inverse.

    Args:
        size: N.
        rate: of forgetting.
    Source: Yi et al. 2019, Algorithm 2.
    """

    def __init__(self, size: int, rate: float = 0.05) -> None:
        super().__init__()
        self.rate = rate
        self.last: Tensor
        self.gap: Tensor
        self.met: Tensor
        self.step: Tensor
        self.register_buffer("last", torch.zeros(size))
        self.register_buffer("gap", torch.ones(size))
        self.register_buffer("met", torch.zeros(size))
        self.register_buffer("step", torch.zeros(()))

    def observe(self, ids: Tensor) -> None:
        """A batch of candidates, int64 [B], repeats and all."""
        ids = torch.unique(ids)
        self.step = self.step + 1
        self.met[ids] += 1
        rate = (1 / self.met[ids]).clamp(min=self.rate)
        self.gap[ids] = torch.lerp(self.gap[ids], self.step - self.last[ids], rate)
        self.last[ids] = self.step

    def log_chance(self, ids: Tensor) -> Tensor:
        """log Q, [B]."""
        return -self.gap[ids].clamp(min=1).log()


class Softmax(Task):
    """Cross entropy of each pair's candidate among the candidates of its batch.

    The scores ⟨u, v⟩/τ lose log Q, the chance to stand in a batch, so that what is met often is not
    punished for it; the same candidate elsewhere in the batch is no negative.

    Args:
        size: N of the candidates.
        temperature: τ.
    Source: Yi et al. 2019.
    """

    def __init__(self, size: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature
        self.frequency = StreamedFrequency(size)

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        self.frequency.observe(batch.candidate)
        logits = encoded.query @ encoded.candidate.T / self.temperature
        logits = logits - self.frequency.log_chance(batch.candidate)
        places = torch.arange(len(logits), device=logits.device)
        repeated = batch.candidate[:, None] == batch.candidate
        repeated[places, places] = False
        logits = logits.masked_fill(repeated, -torch.inf)
        return functional.cross_entropy(logits, places)


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
        # The candidates' share of the same sum: its gradient, not its value.
        moved = candidate - candidate_mean if self.centred else candidate
        pushed = (moved @ of_queries.gramian.detach() * moved).sum(-1)
        drawn = scale * (candidate @ query_mean) + 0.5 * scale**2 * pushed
        other = (batch.candidate_weight[:, 0] * drawn).mean()
        return loss + value + other - other.detach()
