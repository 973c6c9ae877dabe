"""Recursive momentum: a moving average that moves along with the embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian.estimator import (
    EntityBatch,
    GramianEstimator,
    batch_moment,
    batch_noise,
    projected,
)
from evergram.gramian.sogram import AveragingRate


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
