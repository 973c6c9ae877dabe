"""Averages of batch Gramians: SOGram with one rate (fixed, or chosen from noise and drift) or the
best of several ([G2] Algorithms 2 and 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evergram.gramian.estimator import (
    EntityBatch,
    GramianEstimator,
    HostBuffers,
    Moment,
    batch_moment,
    batch_noise,
)

# Batches per window for measuring drift, and the range of an automatic rate.
WINDOW = 32
SLOWEST, FASTEST = 0.002, 0.5
# Measure the noise of every fourth batch; σ² is the mean over a window.
NOISE_EVERY = 4
# Weight of the newest window in the running ratio of drift to noise.
SMOOTHING = 0.3
# Smallest detectable drift, as a share of the noise of the difference of two windows.
UNSEEN = 0.25


class AveragingRate(HostBuffers):
    """The averaging rate α of an estimator in each step.

    "auto" minimises the bound of [G2] Prop. 5, variance σ²α/(2 − α) plus squared bias
    (δ(1/α − 1))². σ² comes from the variance within batches, δ from the difference of the means of
    consecutive windows of batches, after subtracting its noise. This noise is measured from the
    second difference of three windows, which a steady drift does not affect. Within an epoch,
    batches drawn without replacement have less noisy means than independent batches; subtracting
    the noise of the latter would hide a slow drift, and the slowest rate would lag behind for ever.
    An undetectable drift counts as the largest undetectable one.

    The rate only depends on δ²/σ², so it does not change when embeddings grow.

    Args:
        shape: of the averaged moment.
        rate: α in (0, 1], or "auto".
        start: the rate until "auto" has seen two windows.

    Source: docs/method.md, "The averaging rate".
    """

    # `lerp` takes a number from CPU memory as an argument, without a copy to the GPU.
    on_host: tuple[str, ...] = ("steps", "value")

    def __init__(self, shape: torch.Size, rate: float | str, start: float = 0.05) -> None:
        super().__init__()
        self.auto: bool = rate == "auto"
        if not self.auto and (isinstance(rate, str) or not 0 < rate <= 1):
            raise ValueError(f"The averaging rate is {rate}; it must be in (0, 1] or 'auto'.")
        chosen = start if isinstance(rate, str) else rate
        self.value: Tensor = nn.Buffer(torch.tensor(chosen, dtype=torch.float64))
        self.steps: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        if self.auto:
            # This window's sum, the previous window's mean, and the last difference of two means.
            for name in ("window", "window_before", "last_move"):
                self.register_buffer(name, torch.zeros(shape))
            # The sum of σ² over this window's measured batches.
            self.register_buffer("variances", torch.zeros((), dtype=torch.float64))
            # Running ‖mean − previous mean‖² / σ², and a window mean's variance over σ²/WINDOW.
            self.register_buffer("moved", torch.zeros((), dtype=torch.float64))
            self.register_buffer("noise", torch.ones((), dtype=torch.float64))

    def forward(self) -> float:
        """Return α of this step."""
        return float(self.value)

    @property
    def wants_noise(self) -> bool:
        """Whether `observe` needs this step's noise."""
        return self.auto and int(self.steps) % NOISE_EVERY == 0

    def observe(self, batch: Tensor, noise: Tensor | None) -> None:
        """With "auto", update the rate from a batch's moment and its variance σ², see
        `batch_noise`.

        Raises: ValueError: `noise` is None, but `wants_noise`.
        """
        if self.wants_noise:
            if noise is None:
                raise ValueError("noise is None, but this step needs it (`wants_noise`).")
            self.get_buffer("variances").add_(noise)
        self.steps = self.steps + 1
        self.get_buffer("window").add_(batch)
        if int(self.steps) % WINDOW == 0:
            self._measure_drift()

    def _measure_drift(self) -> None:
        variances, window = self.get_buffer("variances"), self.get_buffer("window")
        before, mean = self.get_buffer("window_before"), window / WINDOW
        variance = (variances / (WINDOW // NOISE_EVERY)).clamp(min=1e-300)
        windows = int(self.steps) // WINDOW
        if windows > 1:
            drift = self._drift(mean - before, variance, windows)
            self.get_buffer("last_move").copy_(mean - before)
            # The drift is relative to the variance, so the scale of embeddings does not matter.
            self.value = best_rate(1.0, drift).to(self.value)
        before.copy_(mean)
        window.zero_()
        variances.zero_()

    def _drift(self, move: Tensor, variance: Tensor, windows: int) -> float:
        """Return δ²/σ² from `move`, the difference between this window's mean and the previous."""
        last_move = self.get_buffer("last_move")
        moved, noise = self.get_buffer("moved"), self.get_buffer("noise")
        if windows > 2:
            # E‖move − last move‖² is six times the variance of a window's mean.
            mean_variance = (move - last_move).square().sum().double() / 6
            _average(noise, mean_variance * WINDOW / variance, windows - 2)
        # Cap the drift: beyond (WINDOW · σ)² every rate is too slow.
        _average(moved, (move.square().sum() / variance).clamp(max=WINDOW**2), windows - 1)
        # E‖move‖² = (WINDOW · δ)² + 2 var(mean), where var(mean) ≤ σ²/WINDOW.
        expected_noise = 2 * float(noise.clamp(max=1)) / WINDOW
        return max(float(moved) - expected_noise, UNSEEN * expected_noise) / WINDOW**2


def _average(average: Tensor, value: Tensor, number: int) -> None:
    """Update a running average in place with its `number`-th value; the first replaces it."""
    average.lerp_(value.to(average), max(SMOOTHING, 1 / number))


def best_rate(variance: float, drift: float) -> Tensor:
    """Return the rate in [SLOWEST, FASTEST] with the smallest error, see `AveragingRate`.

    Args:
        variance: σ².
        drift: δ²; negative estimates count as 0.
    """
    rate = torch.logspace(
        torch.log10(torch.tensor(SLOWEST)).item(),
        torch.log10(torch.tensor(FASTEST)).item(),
        200,
        dtype=torch.float64,
    )
    spread = variance * rate / (2 - rate)
    return rate[(spread + max(0.0, drift) * (1 / rate - 1) ** 2).argmin()]


class SOGram(GramianEstimator):
    """Ĝ ← (1 − α) Ĝ + α S_B, starting at zero and divided by the total weight of the batches.

    Without `correct_start` it is not divided, as in [G2] Algorithm 2, whose estimate is too small
    by the factor 1 − (1 − α)^t after t batches.

    The state is D² floats for any corpus. For fixed embeddings the corrected Ĝ is unbiased, with
    variance about σ²α/(2 − α); if they move by δ per step, it lags by δ(1/α − 1) ([G2] Prop. 5).
    Before the first update Ĝ is zero, so the first step has no penalty.

    Args:
        dim, factors: D and K.
        rate: α, in (0, 1], or "auto"; with 1 the estimate is the last batch.
    """

    on_host: tuple[str, ...] = ("missing",)

    def __init__(
        self, dim: int, factors: int = 0, rate: float | str = 0.05, correct_start: bool = True
    ) -> None:
        super().__init__(dim, factors)
        self.correct_start = correct_start
        self.rate: AveragingRate = AveragingRate(self.matrix.shape, rate)
        # Π (1 − α_t), the remaining weight of the zero start.
        self.missing: Tensor = nn.Buffer(torch.ones((), dtype=torch.float64))

    def moment(self) -> Moment:
        weight = 1 - float(self.missing)
        # Before the first update, return zero instead of 0/0.
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
# Forecasts are compared over a fifth of the batches so far, clamped to this range.
SHORTEST, LONGEST = 50, 500
# Cap of a forecast's relative excess error.
WORST = 1.0


class AdaptiveSOGram(GramianEstimator):
    """Ĝ with the averaging rate α that has recently predicted the next batch best.

    It keeps twelve averages Ĝ_α ← (1 − α) Ĝ_α + α S_B. Before the update each one is a forecast of
    S_B, with E‖S_B − Ĝ_α‖² = σ² + ‖Ĝ_α − G‖². σ² is the same for all, so the average with the
    smallest mean squared forecast error also has the smallest error, from noise and lag together.
    The score of a rate is a running mean of its relative excess error over the batch's best
    forecast, capped at 1, so that a phase of fast growth is forgotten. Unlike
    `AveragingRate("auto")`, which may miss a slow drift in a short training, it needs no model of
    how embeddings move.

    The state is 12 D (D + K) floats, and the cost of a step is O(12 D²) in addition to the batch's
    O(B D²). The estimate is positive semi-definite; before the first update it is zero.

    Args:
        dim, factors: D and K.
    Source: the averages are from [G2] Algorithm 2; choosing between them by one-step-ahead errors,
        prequential model selection (Dawid 1984), is ours.
    """

    def __init__(self, dim: int, factors: int = 0) -> None:
        super().__init__(dim, factors)
        rates = torch.tensor(RATES, dtype=torch.float64)
        self.rates: Tensor = nn.Buffer(rates, persistent=False)
        self.averages: Tensor = nn.Buffer(torch.zeros(len(RATES), dim, dim + factors))
        # Π (1 − α), the remaining weight of each average's zero start.
        self.missing: Tensor = nn.Buffer(torch.ones_like(rates))
        self.scores: Tensor = nn.Buffer(torch.zeros_like(rates))
        self.steps: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))

    @property
    def rate(self) -> float:
        """α of the current estimate; the fastest before the first update."""
        return float(self.rates[self.scores.argmin()])

    def update(self, rows: EntityBatch) -> None:
        batch = batch_moment(rows).to(self.matrix)
        forecasts = self.averages / (1 - self.missing).clamp(min=1e-30).to(batch)[:, None, None]
        errors = (batch - forecasts).square().sum((1, 2)).double()
        regrets = (errors / errors.min().clamp(min=1e-30) - 1).clamp(max=WORST)
        # The first forecast is zero for all rates, so all have the same error.
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
