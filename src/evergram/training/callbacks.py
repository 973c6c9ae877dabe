"""Hooks into a running training: everything but the steps themselves is a callback."""

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

# Steps of a run after each of which moments are looked at.
FIRST = 3
# What rounding may do to a symmetric matrix or its diagonal, relative to the largest entry.
ROUNDING = 1e-3


class Callback:
    """Base class of callbacks; override the hooks that you need.

    Every hook is given the run: its `steps`, `epoch` (from 1) and `seconds` so far (evaluations are
    not counted), and `step`, which has the encoder and all else that a step works on.

    A callback must not change what the run computes: it must not draw from torch's global
    generator or change a parameter.

    Attributes:
        everywhere: whether all processes of a training run it, each its own; else the first one.
    """

    everywhere: ClassVar[bool] = False

    def on_start(self, run: Trainer) -> None:
        """Run before the first epoch, in the order of the callbacks."""

    def on_step(self, run: Trainer, batch: Batch, objective: Tensor) -> None:
        """Run after each step. `objective` is detached; reading its value waits for the device."""

    def on_step_end(self, run: Trainer) -> None:
        """Run when every callback has seen the step; the run can be saved. Not training time."""

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        """Run after each epoch, with its mean objective; `last`: a limit has been reached."""

    def on_evaluation(self, run: Trainer, record: Mapping[str, float]) -> None:
        """Run after each evaluation, with the history's new entry."""

    def on_epoch_end(self, run: Trainer, last: bool) -> None:
        """Run when every callback has seen the epoch; its state can be saved."""

    def on_end(self, run: Trainer) -> None:
        """Run when training is over, by an error too."""

    def stop(self, run: Trainer) -> str:
        """Return why no epoch should follow, in a word such as "patience"; empty to go on. The
        first process is asked alone, whatever `everywhere` is."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint should hold of this callback: tensors and JSON, by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; before `on_start`. Tensors must be copied."""


class Limits(Callback):
    """Ends a run after the epoch in which training has taken `budget` seconds ("budget"), or in
    which the moment `ends` of `time.monotonic()` has passed ("minutes")."""

    def __init__(self, budget: float | None = None, ends: float | None = None) -> None:
        self.budget = math.inf if budget is None else budget
        self.ends = math.inf if ends is None else ends

    def stop(self, run: Trainer) -> str:
        if run.seconds >= self.budget:
            return "budget"
        return "minutes" if run.clock >= self.ends else ""


class SoundNumbers(Callback):
    """Raises TrainingError after an epoch whose objective is not finite; and where an estimator's
    moment is not a Gramian, after each epoch and each of a run's first steps, before the loss is
    wrong."""

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
    """Raises: TrainingError: an estimator's moment is not a finite float32 matrix [D, D + K] whose
    Gramian is symmetric without a negative diagonal."""
    for side in SIDES:
        for estimator in step.estimators[side]:
            shape = (estimator.dim, estimator.dim + step.factors[side].shape[1])
            moment, wrong = estimator.moment().dense, ""
            wide = moment.dtype == torch.float64 != torch.get_default_dtype()
            if moment.shape != shape or wide:
                wrong = f"is {moment.dtype} {list(moment.shape)} and must be float32 {list(shape)}"
            elif not bool(torch.isfinite(moment).all()):
                wrong = "is not finite, perhaps as embeddings have grown past float32"
            else:
                square = moment[:, : len(moment)].float()
                slack = ROUNDING * float(square.abs().max())
                if float((square - square.T).abs().max()) > slack:
                    wrong = "is not symmetric, as a Gramian Σ p u ⊗ u is"
                elif float(square.diagonal().min()) < -slack:
                    wrong = "has a negative diagonal, which a Gramian Σ p u ⊗ u never has"
            if wrong:
                raise TrainingError(
                    f"The {side} moment of {type(estimator).__name__} {wrong}: lower the learning "
                    "rates of [training], or correct its update if it is your own "
                    "(docs/extend/estimator.md)."
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
