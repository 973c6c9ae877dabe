"""SOGram: an exponential average of batch Gramians. [G1], [G2] Algorithm 2 and 4."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian.averaging_rate import AveragingRate
from evergram.gramian.estimator import (
    EntityBatch,
    GramianEstimator,
    Moment,
    batch_moment,
    batch_noise,
)


class SOGram(GramianEstimator):
    """Ĝ ← (1 − α) Ĝ + α S_B from a zero start, divided by the weight that batches have by now.

    Without `correct_start` it is not divided: [G2] Algorithm 2 as printed, whose estimate is too
    small by (1 − α)^t after t batches.

    D² floats of state for any corpus. At fixed embeddings the corrected Ĝ is unbiased, with
    variance about σ²α/(2 − α); when they move by δ a step it lags by δ(1/α − 1) ([G2] Prop. 5).
    Before the first update Ĝ is zero: the first step has no penalty.

    Args:
        dim, factors: D and K.
        rate: α, in (0, 1], or "auto"; with 1 the estimate is the last batch.
        correct_start: whether the zero start is divided out.
    """

    on_host: tuple[str, ...] = ("missing",)

    def __init__(
        self,
        dim: int,
        factors: int = 0,
        rate: float | str = 0.05,
        correct_start: bool = True,
    ) -> None:
        super().__init__(dim, factors)
        self.correct_start = correct_start
        self.rate: AveragingRate = AveragingRate(self.matrix.shape, rate)
        self.missing: Tensor
        # Π (1 − α_t): the weight that the zero start still has.
        self.register_buffer("missing", torch.ones((), dtype=torch.float64))

    def moment(self) -> Moment:
        weight = 1 - float(self.missing)
        # Nothing folded in yet: 0/0 would be NaN, and the average is the zero it started from.
        if not self.correct_start or weight in (0, 1):
            return Moment(self.matrix)
        return Moment(self.matrix / weight)

    def update(self, rows: EntityBatch) -> None:
        batch = batch_moment(rows).to(self.matrix)
        rate = self.rate()
        self.matrix: Tensor = torch.lerp(self.matrix, batch, rate)
        self.missing = self.missing * (1 - rate)
        if self.rate.auto:
            noise = batch_noise(rows, batch) if self.rate.wants_noise else None
            self.rate.observe(batch, noise)
