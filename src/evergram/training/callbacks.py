"""Callbacks of the training loop: limits, checks and progress reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.encoders.encoder import SIDES
from evergram.errors import TrainingError
from evergram.training.progress import Handle, Progress
from evergram.training.step import Step

if TYPE_CHECKING:
    from evergram.training.loop import Trainer

# Moments are checked after each of the first steps of a run.
FIRST = 3
# Tolerance for asymmetry and negative diagonals, relative to the largest entry.
ROUNDING = 1e-3


class Callback:
    """Base class of callbacks; override the hooks that you need.

    Every hook gets the run, with its `steps`, `epoch` (from 1), `seconds` so far (without
    evaluations), and `step`, which holds the encoder, estimators and optimizers.
    A callback must not draw from torch's global generator or change a parameter.

    Attributes:
        everywhere: True to run the callback in every process, False to run it in the first only.
    """

    everywhere: ClassVar[bool] = False

    def on_start(self, run: Trainer) -> None:
        """Called before the first epoch."""

    def on_step(self, run: Trainer, batch: Batch, objective: Tensor) -> None:
        """Called after each step. `objective` is detached; reading it waits for the device."""

    def on_step_end(self, run: Trainer) -> None:
        """Called after every callback's `on_step`, to save the run; not part of training time."""

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        """Called after each epoch, with its mean objective; `last`: no other epoch follows."""

    def on_evaluation(self, run: Trainer, record: Mapping[str, float]) -> None:
        """Called after each evaluation, with the new entry of the history."""

    def on_epoch_end(self, run: Trainer, last: bool) -> None:
        """Called after `on_epoch` of all callbacks, when the run can be saved."""

    def on_end(self, run: Trainer) -> None:
        """Called at the end of training, also after an error."""

    def stop(self, run: Trainer) -> str:
        """Return a word such as "patience" to end training, or "" to continue. Only the first
        process calls it, even with `everywhere`."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return this callback's state for a checkpoint: tensors and JSON values, by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`; called before `on_start`. Tensors must be copied."""


class Limits(Callback):
    """Ends training after the first epoch at whose end training has taken `budget` seconds
    ("budget"), or `time.monotonic()` has reached `ends` ("minutes")."""

    def __init__(self, budget: float | None = None, ends: float | None = None) -> None:
        self.budget = math.inf if budget is None else budget
        self.ends = math.inf if ends is None else ends

    def stop(self, run: Trainer) -> str:
        if run.seconds >= self.budget:
            return "budget"
        return "minutes" if run.clock >= self.ends else ""


class SoundNumbers(Callback):
    """Raises TrainingError if an epoch's objective is not finite, or if an estimator's moment is
    not a valid Gramian after an epoch or one of the first steps."""

    everywhere = True

    def on_step(self, run: Trainer, batch: Batch, objective: Tensor) -> None:
        if run.steps <= FIRST and bool(torch.isfinite(objective)):
            refuse_wrong_moments(run.step)

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        if not math.isfinite(objective):
            raise TrainingError(
                f"The loss is {objective} in epoch {run.epoch}; lower training.table_rate, "
                "training.layer_rate or task.penalty. If gramian.kind is your own, try another."
            )
        refuse_wrong_moments(run.step)


def refuse_wrong_moments(step: Step) -> None:
    """Raise TrainingError unless every estimator's moment is a finite float32 matrix [D, D + K]
    whose Gramian is symmetric with a non-negative diagonal."""
    for side in SIDES:
        for estimator in step.estimators[side]:
            shape = (estimator.dim, estimator.dim + step.factors[side].shape[1])
            moment, problem = estimator.moment().dense, ""
            wide = moment.dtype == torch.float64 != torch.get_default_dtype()
            if moment.shape != shape or wide:
                problem = (
                    f"is {moment.dtype} {list(moment.shape)} and must be float32 {list(shape)}"
                )
            elif not bool(torch.isfinite(moment).all()):
                problem = "is not finite, perhaps because embeddings overflow float32"
            else:
                square = moment[:, : len(moment)].float()
                slack = ROUNDING * float(square.abs().max())
                if float((square - square.T).abs().max()) > slack:
                    problem = "is not symmetric, as a Gramian Σ p u ⊗ u must be"
                elif float(square.diagonal().min()) < -slack:
                    problem = "has a negative diagonal entry, which a Gramian Σ p u ⊗ u never has"
            if problem:
                raise TrainingError(
                    f"The {side} moment of {type(estimator).__name__} {problem}: lower the "
                    "learning rates of [training], or correct `update` if the estimator is your "
                    "own (docs/extend/estimator.md)."
                )


class ProgressReport(Callback):
    """Shows a run's steps and evaluations.

    Args:
        total: number of steps; the maximum if training may stop early.
        metric: the metric to show after each evaluation; None shows the loss after each epoch.
    """

    def __init__(
        self, progress: Progress, title: str, total: int, metric: str | None = None
    ) -> None:
        self.progress = progress
        self.title = title
        self.total = total
        self.metric = metric
        self._stack = ExitStack()
        self._task: Handle
        self._batch_size: int

    def on_start(self, run: Trainer) -> None:
        task = self.progress.task(self.title, self.total, at_most=self.metric is not None)
        self._task, self._batch_size = self._stack.enter_context(task), run.sampler.batch_size
        self._task.advance(run.steps, 0)

    def on_step(self, run: Trainer, batch: Batch, objective: Tensor) -> None:
        self._task.advance(1, self._batch_size)

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        if self.metric is None:
            self._describe(run.epoch, objective)

    def on_evaluation(self, run: Trainer, record: Mapping[str, float]) -> None:
        if self.metric is not None:
            self._describe(run.epoch, record["objective"], **{self.metric: record[self.metric]})

    def _describe(self, epoch: int, loss: float, **metric: float) -> None:
        figures = "".join(f" {name} {value:.4f}" for name, value in metric.items())
        self._task.describe(
            f"epoch {epoch} loss {loss:.4f}{figures}", epoch=epoch, loss=loss, **metric
        )

    def on_end(self, run: Trainer) -> None:
        self._stack.close()
