"""A callback that shows a run's steps and evaluations.

It is not in `progress.py`, so that commands that train nothing show progress without importing the
training loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from torch import Tensor

from evergram.data.sampling import Batch
from evergram.training.callbacks import Callback, Point
from evergram.training.progress import Handle, Progress

if TYPE_CHECKING:
    from evergram.training.loop import Trainer


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
