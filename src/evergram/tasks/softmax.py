"""The observed candidate against the others of its batch. Yi et al. 2019."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.sampling import Batch
from evergram.tasks.task import Encoded, Moments, Task


class StreamedFrequency(torch.nn.Module):
    """The chance of each candidate to be in a batch, estimated as batches pass.

    For each candidate it averages the number of batches between two that hold the candidate; the
    chance is the inverse. The average forgets with `rate` once it has 1/rate observations.

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
        """Learn from a batch of candidates, int64 [B], with repeats."""
        ids = torch.unique(ids)
        self.step = self.step + 1
        self.met[ids] += 1
        rate = (1 / self.met[ids]).clamp(min=self.rate)
        self.gap[ids] = torch.lerp(self.gap[ids], self.step - self.last[ids], rate)
        self.last[ids] = self.step

    def log_chance(self, ids: Tensor) -> Tensor:
        """Return log Q of candidates [B], [B]."""
        return -self.gap[ids].clamp(min=1).log()


class Softmax(Task):
    """Cross entropy of each pair's candidate among the candidates of its batch.

    log Q, the chance to be in a batch, is subtracted from the scores ⟨u, v⟩/τ, so that frequent
    candidates are not penalised; the same candidate elsewhere in the batch is not a negative.
    In evaluation mode (`eval()`) nothing is learned of the chances.

    Args:
        size: N of the candidates.
        temperature: τ.
    Source: Yi et al. 2019.
    """

    def __init__(self, size: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature
        self.frequency: StreamedFrequency = StreamedFrequency(size)

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        if self.training:
            self.frequency.observe(batch.candidate)
        logits = encoded.query @ encoded.candidate.T / self.temperature
        logits = logits - self.frequency.log_chance(batch.candidate)
        places = torch.arange(len(logits), device=logits.device)
        repeated = batch.candidate[:, None] == batch.candidate
        repeated[places, places] = False
        logits = logits.masked_fill(repeated, -torch.inf)
        return functional.cross_entropy(logits, places)
