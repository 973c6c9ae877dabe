"""SOGram: averages of batch Gramians, by one rate or the best of several. [G2] Algorithm 2, 4."""

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


RATES = (0.5, 0.3, 0.2, 0.13, 0.08, 0.05, 0.03, 0.02, 0.012, 0.007, 0.004, 0.002)
# Batches over which forecasts are compared: a fifth of all so far, in this range.
SHORTEST, LONGEST = 50, 500
# A forecast whose squared error is further above the batch's best, relatively, is simply wrong.
WORST = 1.0


class AdaptiveSOGram(GramianEstimator):
    """Ĝ of the averaging rate α that has lately predicted the next batch best.

    It keeps twelve averages Ĝ_α ← (1 − α) Ĝ_α + α S_B. Before S_B is folded in, each of them is a
    forecast of S_B, with E‖S_B − Ĝ_α‖² = σ² + ‖Ĝ_α − G‖². σ² is the same for all, so the average
    with the least mean squared forecast error has the least error, be it noise or lag. What is
    averaged over batches is each forecast's excess over the best one, relative and capped at 1, so
    that embeddings which once grew or shrank fast do not decide the choice for ever. It needs no
    model of how embeddings move; `AveragingRate("auto")` has one, and may miss a slow drift in a
    short training.

    The state is 12 D (D + K) floats, and a step's cost beside the batch's O(B D²) is O(12 D²). The
    estimate is positive semi-definite. Before the first update it is zero.

    Args:
        dim, factors: D and K.
    Source: the average is that of [G2] Algorithm 2; choosing by one-step-ahead errors is
        prequential model selection (Dawid 1984), which is ours here.
    """

    def __init__(self, dim: int, factors: int = 0) -> None:
        super().__init__(dim, factors)
        self.rates: Tensor
        self.averages: Tensor
        self.missing: Tensor
        self.scores: Tensor
        self.steps: Tensor
        rates = torch.tensor(RATES, dtype=torch.float64)
        self.register_buffer("rates", rates, persistent=False)
        self.register_buffer("averages", torch.zeros(len(RATES), dim, dim + factors))
        # Π (1 − α): the weight that each average's zero start still has.
        self.register_buffer("missing", torch.ones_like(rates))
        self.register_buffer("scores", torch.zeros_like(rates))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def rate(self) -> float:
        """α of the current estimate; the fastest before the first update."""
        return float(self.rates[self.scores.argmin()])

    def update(self, rows: EntityBatch) -> None:
        batch = batch_moment(rows).to(self.matrix)
        forecasts = self.averages / (1 - self.missing).clamp(min=1e-30).to(batch)[:, None, None]
        errors = (batch - forecasts).square().sum((1, 2)).double()
        regrets = (errors / errors.min().clamp(min=1e-30) - 1).clamp(max=WORST)
        # The first forecast is zero for every rate and favours none.
        steps = (self.steps + 1).double()
        horizon = torch.minimum(steps, (steps / 5).clamp(SHORTEST, LONGEST))
        self.scores = torch.lerp(self.scores, regrets, 1 / horizon)
        self.averages = torch.lerp(
            self.averages, batch.expand_as(self.averages), self.rates.to(batch)[:, None, None]
        )
        self.missing = self.missing * (1 - self.rates)
        self.steps = self.steps + 1
        best = self.scores.argmin()
        self.matrix: Tensor = self.averages[best] / (1 - self.missing[best]).to(batch)
