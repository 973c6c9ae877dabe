"""Selection: keep the best epoch by held-out pairs, and stop when no better one comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from evergram.collectives import ALONE, Collectives
from evergram.data.split import Split
from evergram.evaluation.metric_sample import MetricSample, sample_queries
from evergram.evaluation.ranking import query_metrics, rank_metrics, relevance_of
from evergram.training.callbacks import Callback
from evergram.training.distributed.agreement import begin_shared
from evergram.training.distributed.shares import embed_together

if TYPE_CHECKING:
    from evergram.training.loop import Trainer

# Beside the kept parameters: the metric of each query at `reference_epoch`.
REFERENCE = "reference|values"
# The name of the selection's metric among what processes share.
SELECTION = "selection"


def cloned(name: str, value: Tensor) -> Tensor:
    """Return a copy of a tensor in memory, whatever its name."""
    return value.clone()


@dataclass
class EarlyStopping(Callback):
    """Evaluates during training, keeps the best parameters, and stops when patience runs out.

    Noise in a metric of sampled queries must not prolong training: patience then counts from the
    last best record that was above the reference before it in paired differences of the same
    queries, by more than their 95 % interval. Small gains add up.

    Args:
        metric: the record's entry that should be high.
        patience: evaluations in a row without a better one after which training ends; 0: never.
        select_after: only later epochs can be the best, and patience is counted from it.
        history: all records, in order; each has `epoch` and the metric.
        best, best_epoch: of the best record so far, the first of those that are equal.
        kept: the model's tensors at that epoch; for a sampled metric also the reference's values.
        evaluate: gives the metric of a run as it stands, of all queries or of a sample.
        every: epochs between two evaluations; the last epoch is always evaluated.
        copied: copies a tensor of `kept` by its name, see `Trainer.copied`.
    """

    metric: str
    patience: int = 0
    select_after: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best: float = -1.0
    best_epoch: int = 0
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    evaluate: Callable[[Trainer], float | MetricSample] = field(default=lambda run: 0.0, repr=False)
    every: int = 1
    copied: Callable[[str, Tensor], Tensor] = field(default=cloned, repr=False)

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        if not last and run.epoch % self.every:
            return
        reference = self.reference_epoch
        measured = self.evaluate(run)
        record = {"epoch": run.epoch, "seconds": run.seconds, "objective": objective}
        record[self.metric] = measured.mean if isinstance(measured, MetricSample) else measured
        if self.add(record, last):
            before = self.kept.get(REFERENCE)
            self.kept = run.parameters(self.kept)
            if isinstance(measured, MetricSample):
                if before is None or measured.above(before):
                    before, reference = measured.values, run.epoch
                self.kept = {**self.kept, REFERENCE: before}
        if isinstance(measured, MetricSample):
            record["standard_error"] = measured.standard_error
            record["reference_epoch"] = reference
        run.evaluated(record)

    def stop(self, run: Trainer) -> str:
        return "patience" if self.exhausted else ""

    def state_dict(self) -> dict[str, Any]:
        kept = {f"kept|{name}": value for name, value in self.kept.items()}
        records = {"history": self.history, "best": self.best, "best_epoch": self.best_epoch}
        return {**records, **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history = [dict(record) for record in state["history"]]
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        kept = {k.removeprefix("kept|"): v for k, v in state.items() if k.startswith("kept|")}
        self.kept = {name: self.copied(name, value) for name, value in kept.items()}

    def add(self, record: dict[str, float], last: bool) -> bool:
        """Append an evaluation. Return whether it is the best; the `last` one is if there is no
        other."""
        self.history.append(record)
        value, epoch = record[self.metric], int(record["epoch"])
        counts = epoch > self.select_after or (last and not self.kept)
        if not counts or not value > self.best:
            return False
        self.best, self.best_epoch = value, epoch
        return True

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out: a function of the history, also in a resumed run."""
        start = max(self.reference_epoch, self.select_after)
        since = sum(record["epoch"] > start for record in self.history)
        return 0 < self.patience <= since

    @property
    def reference_epoch(self) -> int:
        """The epoch that patience is counted from: the best, or for a sampled metric the last that
        was seen to be better."""
        last = self.history[-1] if self.history else {}
        return int(last.get("reference_epoch", self.best_epoch))

    @property
    def best_is_last(self) -> bool:
        """Whether the last evaluation was the best, so that more epochs may be better still."""
        return bool(self.history) and self.best_epoch == self.history[-1]["epoch"]


class SelectionMetric:
    """A ranking metric of a run on the pairs that select its epoch.

    Where it is the run's `shared[SELECTION]`, several processes measure it together.

    Args:
        queries: number that is ranked, drawn once by `seed`; None is all.
    """

    def __init__(
        self, metric: str, split: Split, queries: int | None = None, seed: int = 0
    ) -> None:
        self.metric = metric
        self.relevance = relevance_of(split.training, split.selection)
        self.population: int = len(self.relevance)
        if queries is not None:
            self.relevance = sample_queries(self.relevance, queries, seed)

    def __call__(self, run: Trainer) -> float | MetricSample:
        together = run.step.collectives if run.shared.get(SELECTION) is self else ALONE
        begin_shared(SELECTION, together)
        now = embed_together(run.encoder, run.step.scene, together)
        return self.of(now["query"], now["candidate"], together)

    def of(
        self, query: Tensor, candidate: Tensor, together: Collectives = ALONE
    ) -> float | MetricSample:
        """Return the metric of vectors [N, D] of each side, which several processes share."""
        vectors, metric = (query, candidate), self.metric
        if len(self.relevance) == self.population:
            return rank_metrics(*vectors, self.relevance, [metric], together=together)[metric]
        values = query_metrics(*vectors, self.relevance, [metric], together=together)[metric]
        return MetricSample(values, self.population)
