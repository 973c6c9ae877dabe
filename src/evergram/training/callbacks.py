"""Hooks into a running training: everything but the steps themselves is a callback."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.errors import TrainingError
from evergram.training.optimizers import id_tables
from evergram.training.progress import Handle, Progress
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
    """Base class of callbacks; override the hooks that you need.

    A callback must not change what the run computes: it must not draw from torch's global
    generator or change a parameter.
    """

    def on_start(self, run: Trainer) -> None:
        """Run before the first epoch, in the order of the callbacks."""

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        """Run after each step. `objective` is detached; reading its value waits for the device."""

    def wants_state(self, run: Trainer) -> bool:
        """Return whether `on_step_end` is called after this step.

        Several processes put their parts of the state together for it; False saves that exchange.
        """
        return True

    def on_step_end(self, run: Trainer) -> None:
        """Run when every callback has seen the step; the run can be saved. Not training time."""

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        """Run after each epoch, with its mean objective; `last`: a limit has been reached."""

    def on_evaluation(self, at: Point, record: Mapping[str, float]) -> None:
        """Run after each evaluation, with the history's new entry."""

    def on_epoch_end(self, run: Trainer, last: bool) -> None:
        """Run when every callback has seen the epoch; its state can be saved."""

    def on_end(self, at: Point) -> None:
        """Run when training is over, by an error too."""

    def stop(self, run: Trainer) -> str:
        """Return why no epoch should follow, in a word such as "patience"; empty to go on."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint should hold of this callback: tensors and JSON, by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; before `on_start`. Tensors must be copied."""


class Budget(Callback):
    """Ends a run after the epoch in which training has taken `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def stop(self, run: Trainer) -> str:
        return "budget" if run.seconds >= self.seconds else ""


class Deadline(Callback):
    """Ends a run after the epoch in which the moment `ends` of `time.monotonic()` has passed.

    The first epoch always ends. The clock is read once an epoch, so that the last one is evaluated.
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
    """Raises TrainingError after an epoch whose objective is not finite; it names `rates`, by key
    of [training]."""

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


class ProgressReport(Callback):
    """Shows a run's steps and evaluations.

    Args:
        total: steps that the run has, or has at most.
        metric: the one to show of each evaluation; None where there is none.
    """

    def __init__(
        self, progress: Progress, title: str, total: int, metric: str | None = None
    ) -> None:
        self.progress = progress
        self.title = title
        self.total = total
        self.metric = metric
        self._stack = ExitStack()
        self._task: Handle | None = None
        self._batch_size = 0

    def on_start(self, run: Trainer) -> None:
        at_most = self.metric is not None
        task = self.progress.task(self.title, self.total, at_most=at_most)
        self._task = self._stack.enter_context(task)
        self._task.advance(run.steps, 0)
        self._batch_size = run.sampler.batch_size

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        if self._task is not None:
            self._task.advance(1, self._batch_size)

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        if self._task is not None and self.metric is None:
            self._task.describe(
                f"epoch {run.epoch} loss {objective:.4f}", epoch=run.epoch, loss=objective
            )

    def on_evaluation(self, at: Point, record: Mapping[str, float]) -> None:
        if self._task is not None and self.metric is not None:
            self._task.describe(
                f"epoch {at.epoch} loss {record['objective']:.4f} "
                f"{self.metric} {record[self.metric]:.4f}",
                epoch=at.epoch,
                loss=record["objective"],
                **{self.metric: record[self.metric]},
            )

    def on_end(self, at: Point) -> None:
        self._stack.close()
