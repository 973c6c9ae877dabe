"""SOGram: an exponential average of batch Gramians. [G1], [G2] Algorithm 3."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian.estimator import GramianEstimator, batch_gramian


class SOGram(GramianEstimator):
    """Ĝ ← (1 − α) Ĝ + α S_B from a zero start, divided by 1 − (1 − α)^t to undo the start.

    D² floats of state, whatever the corpus. At fixed embeddings the corrected Ĝ is unbiased, with
    variance about σ²α/(2 − α); when they move by δ a step it lags by δ(1/α − 1) ([G2] Prop. 5).
    Before the first update Ĝ is zero: the first step has no penalty.

    Args:
        dim: D.
        rate: α, in (0, 1]; 1 is the last batch alone.
    """

    def __init__(self, dim: int, rate: float = 0.05) -> None:
        super().__init__()
        if not 0 < rate <= 1:
            raise ValueError(f"The averaging rate is {rate}; it must lie in (0, 1].")
        self.rate = rate
        self.average: Tensor
        self.missing: Tensor
        self.register_buffer("average", torch.zeros(dim, dim))
        # (1 − α)^t: the weight that the zero start still has.
        self.register_buffer("missing", torch.ones((), dtype=torch.float64))

    def gramian(self) -> Tensor:
        # Nothing folded in yet: 0/0 would be NaN, and the average is the zero it started from.
        weight = torch.where(self.missing == 1, 1.0, 1 - self.missing)
        return self.average / weight.to(self.average)

    def update(self, embeddings: Tensor, weights: Tensor) -> None:
        batch = batch_gramian(embeddings, weights)
        self.average = torch.lerp(self.average, batch.to(self.average), self.rate)
        self.missing = self.missing * (1 - self.rate)
