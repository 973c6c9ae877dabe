"""The averaging rate α of an estimator: fixed, or chosen from noise and drift."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian.estimator import HostBuffers

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
        self,
        shape: torch.Size,
        rate: float | str,
        *,
        recursive: bool = False,
        start: float = 0.05,
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
