"""Selection: keep the best epoch by held-out pairs, and stop when no better one comes.

An evaluation ranks as many queries as take no more than a share of a run's work. Work is counted in
multiply-adds of the data's and the model's sizes, not in seconds: a decision by the clock would end
the same run differently on another machine, or when it is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn

from evergram.collectives import ALONE, Collectives
from evergram.data.split import Split
from evergram.encoders.encoder import SIDES, Encoder
from evergram.evaluation.metric_sample import MetricSample, SampledRanking, sample_queries
from evergram.evaluation.ranking import (
    Relevance,
    popularity,
    popularity_metrics,
    query_metrics,
    rank_metrics,
    relevance_of,
    test_relevance,
)
from evergram.training.callbacks import Callback

if TYPE_CHECKING:
    from evergram.training.loop import Trainer

# Beside the kept parameters: the metric of each query at `reference_epoch`.
REFERENCE = "reference|values"
# The largest share of training's work that evaluation takes by "auto".
SHARE = 0.25
# An evaluation of no more multiply-adds is always of all queries by "auto": some seconds.
FREE = 3 * 10**11
# Fewer queries are never ranked: evaluations become rarer instead.
LEAST = 1000
# Choosing the best scores takes no longer than this many multiply-adds per score.
SELECTING = 64

EvaluateShare = float | Literal["auto", "full"]


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

    everywhere: ClassVar[bool] = True

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


@dataclass
class SelectionMetric:
    """A ranking metric of a run on the pairs that select its epoch.

    All processes of a training measure it together.

    Args:
        queries: number that is ranked, drawn once by `seed`; None is all.
    """

    metric: str
    split: Split
    queries: int | None = None
    seed: int = 0

    @cached_property
    def ranked(self) -> tuple[Relevance, int]:
        """The queries that are ranked, made at the first evaluation, and the number of all."""
        every = relevance_of(self.split.training, self.split.selection)
        return sample_queries(every, self.queries, self.seed), len(every)

    def __call__(self, run: Trainer) -> float | MetricSample:
        now, together = run.encoder.embed_all(run.step.scene), run.step.collectives
        vectors, metric = (now["query"], now["candidate"]), self.metric
        relevance, population = self.ranked
        if len(relevance) == population:
            return rank_metrics(*vectors, relevance, [metric], together=together)[metric]
        values = query_metrics(*vectors, relevance, [metric], together=together)[metric]
        return MetricSample(values, population)


def ranking_work(encoder: Encoder, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the multiply-adds of ranking a catalogue for one query, and of embedding everything;
    `sizes`: entities of each side."""
    each = sizes["candidate"] * (encoder.dim + SELECTING)
    return each, sum(sizes.values()) * dense_weights(encoder)


def queries_to_rank(
    queries: int, work: tuple[int, int], share: EvaluateShare, training: int
) -> tuple[int, int]:
    """Return how many of `queries` to rank after `training` multiply-adds of training, and by how
    much evaluations become rarer; `work` is `ranking_work`."""
    if share == "full":
        return queries, 1
    each, fixed = work
    allowed = int((SHARE if share == "auto" else share) * training)
    if share == "auto":
        allowed = max(allowed, FREE)
    least = min(queries, LEAST)
    most = min(queries, max(0, allowed - fixed) // max(1, each))
    if most >= least:
        return most, 1
    return least, -(-(least * each + fixed) // max(1, allowed))


def epoch_work(run: Trainer, counts: Mapping[str, Tensor], *, passes_over_graph: bool) -> int:
    """Return a lower bound of the multiply-adds of an epoch of training.

    Per pair: score, its gradients and the rows' updates, 6 D; for both rows D² for each Gramian
    that a row is multiplied by or folded into, and D² for the preconditioner. Per different entity
    of a batch 3 for each weight of a linear layer. Per step two messages a pair forth and back in a
    graph. A task that wants all candidates scores them for each query, with two gradients.

    Args:
        counts: int64 [N] of each side, pairs of each entity.
    """
    step, sampler, dim = run.step, run.sampler, run.encoder.dim
    row = 0
    if step.objective.wants_moments:
        measures = sum(len(each) for each in step.estimators.values()) // 2
        row = dim**2 * (2 * measures + bool(step.precondition))
    a_step = sampler.batch_size * (6 * dim + 2 * row)
    if dense := dense_weights(run.encoder):
        met = sum(different(counts[side], sampler.batch_size) for side in SIDES)
        a_step += 3 * dense * int(met) // 2  # of the layers of both sides, one side's
    if passes_over_graph:
        a_step += 4 * dim * len(sampler) * sampler.batch_size
    work = len(sampler) * a_step
    if step.objective.task.wants_all_candidates:
        work += 3 * dim * int((counts["query"] > 0).sum()) * len(counts["candidate"])
    return work


def dense_weights(encoder: Encoder) -> int:
    """Return the number of weights of linear layers, which every row passes through."""
    layers = (module for module in encoder.modules() if isinstance(module, nn.Linear))
    return sum(layer.weight.numel() for layer in layers)


def different(counts: Tensor, drawn: int) -> float:
    """Return the expected number of different entities of `drawn` pairs, Σ 1 − (1 − p)^drawn with
    p = count/n, for counts [N]; drawing without replacement gives a few more."""
    share = counts.double() / counts.sum().clamp(min=1)
    return float((1 - (1 - share) ** drawn).sum())


def final_metrics(
    vectors: Mapping[str, Tensor],
    split: Split,
    names: Sequence[str],
    queries: int | None = None,
    seed: int = 0,
    together: Collectives = ALONE,
) -> tuple[dict[str, dict[str, float]], int, SampledRanking | None]:
    """Return the metrics of embeddings ("model") and of popularity on a version's test pairs, the
    number of queries that were ranked, and if they are not all, the metrics of each.

    Args:
        vectors: of each side, [N, D], in the rows of `split.training`.
        queries: number that is ranked, drawn by `seed`; None is all.
        together: processes that each rank a share of the queries, and have all numbers.
    """
    query, candidate = vectors["query"], vectors["candidate"]
    counts, test = split.training.counts("candidate"), test_relevance(split)
    drawn = sample_queries(test, queries, seed)
    if len(drawn) == len(test):
        metrics = {
            "model": rank_metrics(query, candidate, test, names, together=together),
            "popularity": popularity_metrics(counts, test, names, together),
        }
        return metrics, len(test), None
    one, popular = popularity(counts)
    ranked = {"model": (query, candidate), "popularity": (one.expand(len(query), 1), popular)}
    sample = SampledRanking(
        {n: query_metrics(*v, drawn, names, together=together) for n, v in ranked.items()},
        len(test),
    )
    return sample.means(), len(drawn), sample
