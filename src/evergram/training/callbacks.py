"""What may look on while an encoder trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.training.step import Step


@dataclass(frozen=True)
class Point:
    """A point of a run.

    Args:
        step: steps done. epoch: the one that is running, from 1.
        seconds: of training so far.
        training: what the run works on; look, do not touch.
    """

    step: int
    epoch: int
    seconds: float
    training: Step

    @property
    def device(self) -> torch.device:
        return next(self.training.encoder.parameters()).device


class Callback:
    """Override what is wanted; each does nothing by itself.

    A callback must not change what the run computes: no draw from torch's global generator, no
    parameter touched.
    """

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        """After each step. `objective` is detached; reading its value waits for the device."""

    def on_evaluation(self, at: Point, record: Mapping[str, float]) -> None:
        """After each evaluation, with the history's new entry."""

    def on_end(self, at: Point) -> None:
        """When training is over, also by an error."""
