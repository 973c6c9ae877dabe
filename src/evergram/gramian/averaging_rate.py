"""The averaging rate α of an estimator: fixed, decaying, or chosen from noise and drift."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Batches in a window of which the drift is measured, and the range of an automatic rate.
WINDOW = 32
SLOWEST, FASTEST = 0.002, 0.5
# Weight of the newest window in the running ratio of drift to noise.
SMOOTHING = 0.3


class AveragingRate(nn.Module):
    """α of an estimator, step by step.

    `"auto"` minimises the bound of [G2] Prop. 5, variance σ²α/(2 − α) plus squared bias
    (δ(1/α − 1))², with σ² from how the rows of a batch differ and δ from the difference of the
    means of consecutive windows of batches, noise taken off. With `recursive` it minimises that of
    the recursive momentum, whose drift is taken off by pairs: (α²σ² + (1 − α)²τ²)/(1 − (1 − α)²),
    τ² the variance of the pairs' differences. The rate is a function of δ²/σ² or τ²/σ² alone, so
    that embeddings which grow do not disturb it.

    Args:
        shape: of the moment that is averaged.
        rate: α in (0, 1], or "auto".
        decay: κ in [0, 1): step t has α t^−κ.
        start: the rate before "auto" has seen two windows.
    """

    def __init__(
        self,
        shape: torch.Size,
        rate: float | str,
        decay: float = 0.0,
        *,
        recursive: bool = False,
        start: float = 0.05,
    ) -> None:
        super().__init__()
        self.auto = rate == "auto"
        if not self.auto and (isinstance(rate, str) or not 0 < rate <= 1):
            raise ValueError(f"The averaging rate is {rate}; it must lie in (0, 1] or be 'auto'.")
        if not 0 <= decay < 1:
            raise ValueError(f"The decay of the averaging rate is {decay}; it must lie in [0, 1).")
        self.decay = decay
        self.recursive = recursive
        self.value: Tensor
        self.steps: Tensor
        chosen = start if isinstance(rate, str) else rate
        self.register_buffer("value", torch.tensor(chosen, dtype=torch.float64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        if self.auto:
            for name in ("window", "window_before"):
                self.register_buffer(name, torch.zeros(shape))
            # Sums of σ² and τ² over this window; the running δ²/σ², and the number of its windows.
            self.register_buffer("sums", torch.zeros(2, dtype=torch.float64))
            self.register_buffer("seen", torch.zeros(2, dtype=torch.float64))

    def forward(self) -> Tensor:
        """Return α of this step, a float64 scalar."""
        return self.value * (self.steps + 1).double() ** -self.decay if self.decay else self.value

    def observe(self, batch: Tensor, noise: Tensor, pairs: Tensor | None = None) -> None:
        """Learn from a step that was averaged.

        Args:
            batch: the batch's moment.
            noise: its variance σ², see `batch_noise`.
            pairs: the variance τ² of the pairs' difference, with `recursive`.
        """
        self.steps = self.steps + 1
        sums = self.get_buffer("sums")
        sums[0] += noise
        if pairs is not None:
            sums[1] += pairs
        self.get_buffer("window").add_(batch)
        if int(self.steps) % WINDOW == 0:
            self._measure_drift()

    def _measure_drift(self) -> None:
        sums, seen = self.get_buffer("sums"), self.get_buffer("seen")
        window, before = self.get_buffer("window"), self.get_buffer("window_before")
        mean = window / WINDOW
        variance = sums[0] / WINDOW
        if self.recursive:
            self._choose(float(variance), float(sums[1] / WINDOW))
        elif int(self.steps) > WINDOW:
            # E‖mean − mean before‖² = (window · δ)² + 2σ²/window.
            moved = (mean - before).square().sum().double() - 2 * variance / WINDOW
            # Beyond 1 every rate is too slow.
            ratio = (moved / WINDOW**2 / variance.clamp(min=1e-300)).clamp(-1, 1)
            seen[0].lerp_(ratio, max(SMOOTHING, 1 / (float(seen[1]) + 1)))
            seen[1] += 1
            self._choose(1.0, float(seen[0]))
        before.copy_(mean)
        window.zero_()
        sums.zero_()

    def _choose(self, variance: float, other: float) -> None:
        self.value = best_rate(variance, other, self.recursive).to(self.value)

    def skip(self) -> None:
        """Count a step of a fixed or decaying rate, which learns nothing from batches."""
        self.steps = self.steps + 1


def best_rate(variance: float, other: float, recursive: bool = False) -> Tensor:
    """Return the rate in [SLOWEST, FASTEST] with the least error, see `AveragingRate`.

    Args:
        variance: σ².
        other: δ², or τ² for the recursive momentum; a negative estimate counts as 0.
    """
    rate = torch.logspace(
        torch.log10(torch.tensor(SLOWEST)).item(),
        torch.log10(torch.tensor(FASTEST)).item(),
        200,
        dtype=torch.float64,
    )
    other = max(0.0, other)
    if recursive:
        error = (rate**2 * variance + (1 - rate) ** 2 * other) / (1 - (1 - rate) ** 2)
    else:
        error = variance * rate / (2 - rate) + other * (1 / rate - 1) ** 2
    return rate[error.argmin()]
