"""Keep the epoch that is best on held-out pairs, and stop early when the metric stops improving.

Evaluations rank only as many queries as fit into a share of the training work. Work is counted in
multiply-adds, computed from the sizes of data and model. Measuring seconds instead would give
different results on another machine or after resuming.
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
from evergram.evaluation.metric_sample import (
    MetricSample,
    SampledRanking,
    sample_pairs,
    sample_test,
)
from evergram.evaluation.ranking import (
    Relevance,
    popularity,
    popularity_metrics,
    query_metrics,
    rank_metrics,
    relevance_of,
)
from evergram.training.callbacks import Callback

if TYPE_CHECKING:
    from evergram.training.loop import Trainer

# Name, among the kept tensors, of the metric of each query at `reference_epoch`.
REFERENCE = "reference|values"
# With "auto", evaluation takes at most this share of the training work.
SHARE = 0.25
# With "auto", an evaluation of at most this many multiply-adds (some seconds) ranks all queries.
FREE = 3 * 10**11
# Rank at least this many queries, and evaluate less often instead.
LEAST = 1000
# Upper bound of the time for selecting the top scores, in multiply-adds per score.
SELECTING = 64

EvaluateShare = float | Literal["auto", "full"]


def cloned(name: str, value: Tensor) -> Tensor:
    """Return a copy of a tensor in memory; the name is ignored."""
    return value.clone()


@dataclass
class EarlyStopping(Callback):
    """Evaluates during training, keeps the best parameters, and stops when patience runs out.

    Noise in a sampled metric must not prolong training. Patience therefore counts from a reference
    epoch. A new best epoch becomes the reference only if the paired differences of its queries to
    the reference are significant (95 %); so several small gains can add up to one."""

    everywhere: ClassVar[bool] = True

    metric: str  # the metric to maximise
    # Number of evaluations without improvement after which training ends; 0: never.
    patience: int = 0
    select_after: int = 0  # only later epochs can be the best; patience starts there
    # All records, in order; each has `epoch` and the metric.
    history: list[dict[str, float]] = field(default_factory=list)
    # Of the best record so far; the first one if several are equal.
    best: float = -1.0
    best_epoch: int = 0
    # The model's tensors at that epoch; for a sampled metric also the reference's values.
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    # Returns the metric of a run's current model, for all queries or a sample.
    evaluate: Callable[[Trainer], float | MetricSample] = field(default=lambda run: 0.0, repr=False)
    every: int = 1  # epochs between two evaluations; the last epoch is always evaluated
    # Copies a tensor of `kept` given its name, see `Trainer.copied`.
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
        """Append a record. Return whether it is the best so far; if no epoch was eligible before,
        the `last` one is."""
        self.history.append(record)
        value, epoch = record[self.metric], int(record["epoch"])
        eligible = epoch > self.select_after or (last and not self.kept)
        if not eligible or not value > self.best:
            return False
        self.best, self.best_epoch = value, epoch
        return True

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out; it only depends on the history, also in a resumed run."""
        start = max(self.reference_epoch, self.select_after)
        since = sum(record["epoch"] > start for record in self.history)
        return 0 < self.patience <= since

    @property
    def reference_epoch(self) -> int:
        """The epoch from which patience counts: the best one, or for a sampled metric the last
        significantly better one."""
        last = self.history[-1] if self.history else {}
        return int(last.get("reference_epoch", self.best_epoch))


@dataclass
class SelectionMetric:
    """A ranking metric of a run on its selection pairs, of a sample of `queries` drawn once with
    `seed` (None is all); processes share the work."""

    metric: str
    split: Split
    queries: int | None = None
    seed: int = 0

    @cached_property
    def ranked(self) -> tuple[Relevance, int]:
        """The ranked queries with their relevant candidates, and the number of all queries."""
        pairs, population = sample_pairs(self.split.selection, self.queries, self.seed)
        return relevance_of(self.split.training, pairs), population

    def __call__(self, run: Trainer) -> float | MetricSample:
        now, together = run.encoder.embed_all(run.step.scene), run.step.collectives
        vectors, metric = (now["query"], now["candidate"]), self.metric
        relevance, population = self.ranked
        if len(relevance) == population:
            return rank_metrics(*vectors, relevance, [metric], together=together)[metric]
        values = query_metrics(*vectors, relevance, [metric], together=together)[metric]
        return MetricSample(values, population)


def ranking_work(encoder: Encoder, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the multiply-adds of ranking all candidates for one query, and of embedding all
    entities; `sizes`: number of entities of each side."""
    per_query = sizes["candidate"] * (encoder.dim + SELECTING)
    return per_query, sum(sizes.values()) * dense_weights(encoder)


def queries_to_rank(
    queries: int, work: tuple[int, int], share: EvaluateShare, training: int
) -> tuple[int, int]:
    """Return how many of `queries` to rank after `training` multiply-adds of training, and the
    factor by which to evaluate less often; `work` is from `ranking_work`."""
    if share == "full":
        return queries, 1
    per_query, fixed = work
    allowed = int((SHARE if share == "auto" else share) * training)
    if share == "auto":
        allowed = max(allowed, FREE)
    least = min(queries, LEAST)
    most = min(queries, max(0, allowed - fixed) // max(1, per_query))
    if most >= least:
        return most, 1
    return least, -(-(least * per_query + fixed) // max(1, allowed))


def epoch_work(run: Trainer, counts: Mapping[str, Tensor], *, passes_over_graph: bool) -> int:
    """Return a lower bound of the multiply-adds of an epoch of training.

    - Per pair: 6 D for the score, its gradients and the updates of both rows.
    - Per row of a pair: D² for each product with a Gramian or update of one, D² for the
      preconditioner.
    - Per distinct entity of a batch: 3 for each weight of a linear layer.
    - Per step with a graph: 4 D for each training pair, for messages and their gradients.
    - With all candidates: 3 D for each query and candidate.

    Args:
        counts: int64 [N] of each side, pairs per entity.
    """
    step, sampler, dim = run.step, run.sampler, run.encoder.dim
    per_row = 0
    if step.objective.wants_moments:
        measures = sum(len(estimators) for estimators in step.estimators.values()) // 2
        per_row = dim**2 * (2 * measures + bool(step.precondition))
    per_step = sampler.batch_size * (6 * dim + 2 * per_row)
    if dense := dense_weights(run.encoder):
        distinct = sum(expected_distinct(counts[side], sampler.batch_size) for side in SIDES)
        per_step += 3 * dense * int(distinct) // 2  # each entity passes through one side's layers
    if passes_over_graph:
        per_step += 4 * dim * len(sampler) * sampler.batch_size
    work = len(sampler) * per_step
    if step.objective.task.wants_all_candidates:
        work += 3 * dim * int((counts["query"] > 0).sum()) * len(counts["candidate"])
    return work


def dense_weights(encoder: Encoder) -> int:
    """Return the number of weights of all linear layers."""
    layers = (module for module in encoder.modules() if isinstance(module, nn.Linear))
    return sum(layer.weight.numel() for layer in layers)


def expected_distinct(counts: Tensor, drawn: int) -> float:
    """Return the expected number of distinct entities in `drawn` pairs, Σ 1 − (1 − p)^drawn with
    p = count/n, for counts [N]; drawing without replacement gives slightly more."""
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
    """Return the metrics on a version's test pairs, of the embeddings ("model") and of popularity;
    the number of ranked queries; and, if that is a sample, the metrics of each query.

    Args:
        vectors: for each side, [N, D], in the rows of `split.training`.
        queries: number of queries to rank, drawn with `seed`; None is all.
        together: processes that each rank a share of the queries and get all results.
    """
    query, candidate = vectors["query"], vectors["candidate"]
    counts, (drawn, population) = (
        split.training.counts("candidate"),
        sample_test(split, queries, seed),
    )
    if len(drawn) == population:
        metrics = {
            "model": rank_metrics(query, candidate, drawn, names, together=together),
            "popularity": popularity_metrics(counts, drawn, names, together),
        }
        return metrics, population, None
    one, popular = popularity(counts)
    ranked = {"model": (query, candidate), "popularity": (one.expand(len(query), 1), popular)}
    sample = SampledRanking(
        {n: query_metrics(*v, drawn, names, together=together) for n, v in ranked.items()},
        population,
    )
    return sample.means(), len(drawn), sample
