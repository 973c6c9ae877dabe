"""Averages of batch Gramians: SOGram, by one rate (fixed, or chosen from noise and drift) or the
best of several ([G2] Algorithm 2, 4); and Storm, recursive momentum, which moves along with the
embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian.estimator import (
    EntityBatch,
    GramianEstimator,
    HostBuffers,
    Moment,
    batch_moment,
    batch_noise,
    projected,
)

# Batches in a window of which the drift is measured, and the range of an automatic rate.
WINDOW = 32
SLOWEST, FASTEST = 0.002, 0.5
# Batches whose noise is measured, one of so many: σ² is a mean over the window.
NOISE_EVERY = 4
# Weight of the newest window in the running ratio of drift to noise.
SMOOTHING = 0.3
# A drift below this share of the noise of the windows' difference cannot be told from none.
UNSEEN = 0.25


class AveragingRate(HostBuffers):
    """α of an estimator, step by step.

    `"auto"` minimises the bound of [G2] Prop. 5, variance σ²α/(2 − α) plus squared bias
    (δ(1/α − 1))², with σ² from how the rows of a batch differ and δ from the difference of the
    means of consecutive windows of batches, noise taken off. That noise is measured too, from the
    second difference of three windows, which a steady drift leaves out: batches that pass over an
    epoch without replacement have means that hardly differ, and with the noise of independent
    batches taken off a slow drift would vanish, and the slowest rate lag behind it for ever. A
    drift too small to be seen is taken to be as large as one that could be missed.

    With `recursive` it minimises the bound of the recursive momentum, whose drift is taken off by
    pairs: the variance is (α²σ² + (1 − α)²τ²)/(1 − (1 − α)²), τ² that of the pairs' differences.
    The first batch of an epoch has no pair, and where one step in n has none the drift is δ/n. The
    rate is a function of δ²/σ² and τ²/σ² alone, so that embeddings which grow do not disturb it.

    Args:
        shape: of the moment that is averaged.
        rate: α in (0, 1], or "auto".
        start: the rate before "auto" has seen two windows.

    Source: docs/method.md, "The averaging rate".
    """

    # A number in the host's memory is an argument of `lerp`: nothing is copied for it.
    on_host: tuple[str, ...] = ("steps", "value")

    def __init__(
        self, shape: torch.Size, rate: float | str, *, recursive: bool = False, start: float = 0.05
    ) -> None:
        super().__init__()
        self.auto: bool = rate == "auto"
        if not self.auto and (isinstance(rate, str) or not 0 < rate <= 1):
            raise ValueError(f"The averaging rate is {rate}; it must lie in (0, 1] or be 'auto'.")
        self.recursive = recursive
        self.value: Tensor
        self.steps: Tensor
        chosen = start if isinstance(rate, str) else rate
        self.register_buffer("value", torch.tensor(chosen, dtype=torch.float64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        if self.auto:
            # This window's sum, the last one's mean, and how that differs from the one before it.
            for name in ("window", "window_before", "last_move"):
                self.register_buffer(name, torch.zeros(shape))
            # Sums over this window's measured batches: σ², τ², and how many had a pair.
            self.register_buffer("sums", torch.zeros(3, dtype=torch.float64))
            # Running ‖mean − mean before‖² / σ², and a window mean's variance over σ²/WINDOW.
            self.register_buffer("moved", torch.zeros((), dtype=torch.float64))
            self.register_buffer("noise", torch.ones((), dtype=torch.float64))

    def forward(self) -> float:
        """Return α of this step."""
        return float(self.value)

    @property
    def noise_every(self) -> int:
        """One of so many batches is asked for its noise; with `recursive` all are, as one that has
        no pair says nothing of τ²."""
        return 1 if self.recursive else NOISE_EVERY

    @property
    def wants_noise(self) -> bool:
        """Whether this step's noise is measured."""
        return self.auto and int(self.steps) % self.noise_every == 0

    def observe(self, batch: Tensor, noise: Tensor | None, pairs: Tensor | None = None) -> None:
        """Learn from a step that was averaged, with "auto".

        Args:
            batch: the batch's moment.
            noise: its variance σ², see `batch_noise`; read where `wants_noise`, None elsewhere.
            pairs: the variance τ² of the pairs' difference, with `recursive`.
        Raises: ValueError: the noise is wanted and missing.
        """
        sums = self.get_buffer("sums")
        if self.wants_noise:
            if noise is None:
                raise ValueError("This step's noise is wanted (`wants_noise`), and it is None.")
            sums[0] += noise
        self.steps = self.steps + 1
        if pairs is not None:
            sums[1] += pairs
            sums[2] += 1
        self.get_buffer("window").add_(batch)
        if int(self.steps) % WINDOW == 0:
            self._measure_drift()

    def _measure_drift(self) -> None:
        sums, window = self.get_buffer("sums"), self.get_buffer("window")
        before, last_move = self.get_buffer("window_before"), self.get_buffer("last_move")
        mean, measured = window / WINDOW, WINDOW // self.noise_every
        variance = (sums[0] / measured).clamp(min=1e-300)
        windows = int(self.steps) // WINDOW
        paired = int(sums[2])
        drift = 0.0
        if paired < measured and windows > 1:
            drift = self._drift(mean - before, variance, windows)
            last_move.copy_(mean - before)
        if paired == measured or windows > 1:
            # Over its variance, so that embeddings which grow do not matter.
            pairs = float(sums[1] / variance) / max(paired, 1)
            # A step without a pair leaves its own part of the drift.
            self.value = best_rate(1.0, drift * (1 - paired / measured) ** 2, pairs).to(self.value)
        before.copy_(mean)
        window.zero_()
        sums.zero_()

    def _drift(self, move: Tensor, variance: Tensor, windows: int) -> float:
        """Return δ²/σ² by how the mean of a window moves from that of the one before."""
        last_move = self.get_buffer("last_move")
        moved, noise = self.get_buffer("moved"), self.get_buffer("noise")
        if windows > 2:
            # E‖move − last move‖² is six times the variance of a window's mean.
            unsteady = (move - last_move).square().sum().double() / 6
            _follow(noise, unsteady * WINDOW / variance, windows - 2)
        # Beyond (WINDOW · σ)² every rate is too slow.
        _follow(moved, (move.square().sum() / variance).clamp(max=WINDOW**2), windows - 1)
        # E‖move‖² = (WINDOW · δ)² + 2 var(mean); independent batches have the largest.
        apart = 2 * float(noise.clamp(max=1)) / WINDOW
        return max(float(moved) - apart, UNSEEN * apart) / WINDOW**2


def _follow(average: Tensor, value: Tensor, number: int) -> None:
    """Move a running average in place towards its `number`-th value; the first replaces it."""
    average.lerp_(value.to(average), max(SMOOTHING, 1 / number))


def best_rate(variance: float, drift: float, pairs: float = 0.0) -> Tensor:
    """Return the rate in [SLOWEST, FASTEST] with the least error, see `AveragingRate`.

    Args:
        variance: σ².
        drift: δ², of what no pairs take off; a negative estimate counts as 0.
        pairs: τ², of the recursive momentum; 0 without pairs.
    """
    rate = torch.logspace(
        torch.log10(torch.tensor(SLOWEST)).item(),
        torch.log10(torch.tensor(FASTEST)).item(),
        200,
        dtype=torch.float64,
    )
    spread = (rate**2 * variance + (1 - rate) ** 2 * pairs) / (1 - (1 - rate) ** 2)
    return rate[(spread + max(0.0, drift) * (1 / rate - 1) ** 2).argmin()]


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
        self, dim: int, factors: int = 0, rate: float | str = 0.05, correct_start: bool = True
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


class Storm(GramianEstimator):
    """Ĝ ← S_B(θ_t) + (1 − α)(Ĝ − S_B(θ_{t−1})), projected onto the PSD matrices.

    The same batch at both parameters: movement is added, noise mostly cancels, so that a slow α
    does not lag. It costs one more forward pass without gradient. A batch that moved θ_{t−1} to θ_t
    itself must not be used: its rows move more than the others.

    Args:
        dim, factors: D and K.
        rate: α, in (0, 1], or "auto".
    Source: the estimator of Cutkosky and Orabona 2019 (STORM) for a matrix; docs/method.md,
        "Recursive momentum".
    """

    wants_before = True
    on_host: tuple[str, ...] = ("started",)

    def __init__(self, dim: int, factors: int = 0, rate: float | str = 0.1) -> None:
        super().__init__(dim, factors)
        self.rate: AveragingRate = AveragingRate(self.matrix.shape, rate, recursive=True, start=0.1)
        self.started: Tensor
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))

    def update(self, rows: EntityBatch) -> None:
        batch = batch_moment(rows).to(self.matrix)
        rate = self.rate()
        pairs = None
        if not bool(self.started):
            self.matrix: Tensor = batch
            self.started = torch.ones_like(self.started)
        elif rows.before is None:  # the first batch of an epoch: an average's step
            self.matrix = torch.lerp(self.matrix, batch, rate)
        else:
            before = batch_moment(rows, rows.before).to(self.matrix)
            if self.rate.auto:
                pairs = batch_noise(rows, batch - before, pairs=True)
            self.matrix = projected(batch + (1 - rate) * (self.matrix - before))
        if self.rate.auto:
            self.rate.observe(batch, batch_noise(rows, batch), pairs)
