"""Selection: keep the best epoch by held-out pairs, and stop when no better one comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from evergram.data.split import Split
from evergram.evaluation.ranking import rank_metrics
from evergram.evaluation.relevance import relevance_of
from evergram.training.callbacks import Callback

if TYPE_CHECKING:
    from evergram.training.loop import Trainer


@dataclass
class EarlyStopping(Callback):
    """Evaluates as training goes, keeps the best parameters, and stops when patience runs out.

    Args:
        metric: the record's entry that should be high.
        patience: evaluations in a row without a better one, after which training ends; 0 never
            stops it.
        select_after: only epochs after this one can be the best, and patience is counted from it.
        history: all records, in order; each has `epoch` and the metric.
        best, best_epoch: of the best record so far, the first of those that are equal.
        kept: the tensors of the model at that epoch.
        evaluate: gives the metric's value of a run as it stands.
        every: epochs between two evaluations; the last epoch is always evaluated.
    """

    metric: str
    patience: int = 0
    select_after: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best: float = -1.0
    best_epoch: int = 0
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    evaluate: Callable[[Trainer], float] = field(default=lambda run: 0.0, repr=False)
    every: int = 1

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        if not last and run.epoch % self.every:
            return
        value = self.evaluate(run)
        record = {"epoch": run.epoch, "seconds": run.seconds, "objective": objective}
        record[self.metric] = value
        if self.add(record, last):
            self.kept = run.parameters()
        run.evaluated(record)

    def stop(self, run: Trainer) -> str:
        return "patience" if self.exhausted else ""

    def add(self, record: dict[str, float], last: bool) -> bool:
        """Append an evaluation. Returns: whether it is the best, so that `kept` should be set.

        Args:
            last: whether none will follow; a run that ends early keeps its last epoch if no other.
        """
        self.history.append(record)
        value, epoch = record[self.metric], int(record["epoch"])
        counts = epoch > self.select_after or (last and not self.kept)
        if not counts or not value > self.best:
            return False
        self.best, self.best_epoch = value, epoch
        return True

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out. It follows from the history, so that a run that was
        interrupted ends where it would have ended."""
        start = max(self.best_epoch, self.select_after)
        since = sum(record["epoch"] > start for record in self.history)
        return 0 < self.patience <= since

    @property
    def best_is_last(self) -> bool:
        """Whether the last evaluation was the best, so that more epochs may be better still."""
        return bool(self.history) and self.best_epoch == self.history[-1]["epoch"]


class SelectionMetric:
    """A ranking metric of a run on the pairs that select its epoch."""

    def __init__(self, metric: str, split: Split) -> None:
        self.metric = metric
        self.relevance = relevance_of(split.training, split.selection)

    def __call__(self, run: Trainer) -> float:
        now = run.encoder.embed_all(run.step.scene)
        values = rank_metrics(now["query"], now["candidate"], self.relevance, [self.metric])
        return values[self.metric]


def time_to_reach(
    history: Sequence[Mapping[str, float]], metric: str, value: float | None
) -> float | None:
    """Return the seconds of training at the first evaluation with at least `value`; None if there
    is none."""
    if value is None:
        return None
    return next((h["seconds"] for h in history if h[metric] >= value), None)
