"""Hooks into a running training: everything but the steps themselves is a callback."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.errors import TrainingError
from evergram.training.optimizers.build_optimizers import id_tables
from evergram.training.step import Step

if TYPE_CHECKING:
    from evergram.training.loop import Trainer


@dataclass(frozen=True)
class Point:
    """A moment of a run.

    Args:
        step: steps done.
        epoch: the one that is running, from 1.
        seconds: of training so far; evaluations are not counted.
        training: the step with all that it works on; read it, do not change it.
    """

    step: int
    epoch: int
    seconds: float
    training: Step

    @property
    def device(self) -> torch.device:
        return next(self.training.encoder.parameters()).device


class Callback:
    """Base class of callbacks; override the hooks that you need, each does nothing by itself.

    A callback must not change what the run computes: it draws nothing from torch's global
    generator and touches no parameter.
    """

    def on_start(self, run: Trainer) -> None:
        """Run before the first epoch, in the order of the callbacks."""

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        """Run after each step. `objective` is detached; reading its value waits for the device."""

    def wants_state(self, run: Trainer) -> bool:
        """Return whether `on_step_end` is to be called after this step.

        It is asked where several processes hold parts of the state, which are then put together;
        False saves that exchange.
        """
        return True

    def on_step_end(self, run: Trainer) -> None:
        """Run when every callback has seen the step, so that the run can be saved; the time that
        this takes is no training time."""

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        """Run after each epoch.

        Args:
            objective: its mean over the epoch's steps.
            last: whether a limit has been reached, so that no epoch follows.
        """

    def on_evaluation(self, at: Point, record: Mapping[str, float]) -> None:
        """Run after each evaluation, with the history's new entry."""

    def on_epoch_end(self, run: Trainer, last: bool) -> None:
        """Run when every callback has seen the epoch, so that its state can be saved."""

    def on_end(self, at: Point) -> None:
        """Run when training is over, by an error too."""

    def stop(self, run: Trainer) -> str:
        """Return why no epoch should follow, in a word such as "patience"; empty to go on."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint should hold of this callback: tensors and JSON, by name.

        A callback that says nothing here begins anew in a resumed run.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; before `on_start`. Tensors must be copied."""


class Budget(Callback):
    """Ends a run after the epoch in which its training has taken so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def stop(self, run: Trainer) -> str:
        return "budget" if run.seconds >= self.seconds else ""


class Deadline(Callback):
    """Ends a run after the epoch in which a moment of `time.monotonic()` has passed; the first
    epoch, also of a resumed run, always ends.

    The clock is read once an epoch, so that an epoch after which none follows is evaluated.
    """

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self._epoch, self._over = 0, False

    def on_start(self, run: Trainer) -> None:
        self._epoch = run.epoch - (run.batches > 0)

    def stop(self, run: Trainer) -> str:
        if run.epoch != self._epoch:
            self._epoch, self._over = run.epoch, time.monotonic() >= self.ends
        return "minutes" if self._over else ""


class FiniteLoss(Callback):
    """Raises TrainingError after an epoch whose objective is not finite.

    Args:
        rates: the learning rates to name in the error, by key of [training].
    """

    def __init__(self, rates: Mapping[str, float]) -> None:
        self.rates = rates

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        if not math.isfinite(objective):
            # Modules of one's own may have no table.
            rates = ", ".join(
                f"training.{name} ({rate})"
                for name, rate in self.rates.items()
                if name != "table_rate" or id_tables(run.encoder)
            )
            penalty = list(run.step.objective.penalty)
            other = f" or task.penalty ({penalty})" if any(penalty) else ""
            raise TrainingError(
                f"The loss is {objective} in epoch {run.epoch}; lower {rates}{other}."
            )
