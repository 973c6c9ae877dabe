"""How many queries an evaluation ranks, so that it takes no more than a share of a run's work.

Work is counted in multiply-adds of the data's and the model's sizes, not in seconds: a decision by
the clock would end the same run differently on another machine, or when it is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from evergram.collectives import ALONE, Collectives
from evergram.data.corpus import Corpus
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.evaluation.metric_sample import SampledRanking, sample_queries
from evergram.evaluation.ranking import (
    popularity,
    popularity_metrics,
    query_metrics,
    rank_metrics,
    test_relevance,
)
from evergram.training.loop import Trainer

# The largest share of training's work that evaluation takes by "auto".
SHARE = 0.25
# An evaluation of no more multiply-adds is always of all queries by "auto": some seconds.
FREE = 3 * 10**11
# Fewer queries are never ranked: evaluations become rarer instead.
LEAST = 1000
# To choose the best of some scores takes as long as so many multiply-adds a score, or less; see
# `python -m benchmarks evaluation-speed`.
SELECTING = 64

EvaluateShare = float | Literal["auto", "full"]


@dataclass(frozen=True)
class EvaluationPlan:
    """How many queries an evaluation ranks, and by how much evaluations become rarer (`every`)."""

    queries: int
    every: int = 1


@dataclass(frozen=True)
class RankingWork:
    """Multiply-adds of evaluations: `each` ranks one of `queries`, `fixed` embeds everything."""

    queries: int
    each: int
    fixed: int = 0

    @classmethod
    def of(cls, encoder: Encoder, queries: int, corpus: Corpus) -> RankingWork:
        """Return the work of ranking a corpus's catalogue for `queries` queries."""
        each = len(corpus.candidates) * (encoder.dim + SELECTING)
        entities = len(corpus.queries) + len(corpus.candidates)
        return cls(queries, each, entities * dense_weights(encoder))

    def plan(self, share: EvaluateShare, training: int) -> EvaluationPlan:
        """Return how many queries to rank after `training` multiply-adds of training."""
        if share == "full":
            return EvaluationPlan(self.queries)
        allowed = int((SHARE if share == "auto" else share) * training)
        if share == "auto":
            allowed = max(allowed, FREE)
        queries = min(self.queries, max(0, allowed - self.fixed) // max(1, self.each))
        least = min(self.queries, LEAST)
        if queries >= least:
            return EvaluationPlan(queries)
        needed = least * self.each + self.fixed
        return EvaluationPlan(least, -(-needed // max(1, allowed)))


def epoch_work(run: Trainer, corpus: Corpus, *, passes_over_graph: bool) -> int:
    """Return a lower bound of the multiply-adds of an epoch of training.

    Per pair: score, its gradients and the rows' updates, 6 D; for both rows D² for each Gramian
    that a row is multiplied by or folded into, and D² for the preconditioner. Per different entity
    of a batch 3 for each weight of a linear layer. Per step two messages a pair forth and back in a
    graph. A task that wants all candidates scores them for each query, with two gradients.
    """
    step, sampler, dim = run.step, run.sampler, run.encoder.dim
    row = 0
    if step.objective.wants_moments:
        measures = sum(len(each) for each in step.estimators.values()) // 2
        row = dim**2 * (2 * measures + bool(step.precondition))
    a_step = sampler.batch_size * (6 * dim + 2 * row)
    if dense := dense_weights(run.encoder):
        met = sum(different(corpus.counts(side), sampler.batch_size) for side in SIDES)
        a_step += 3 * dense * int(met) // 2  # of the layers of both sides, one side's
    if passes_over_graph:
        a_step += 4 * dim * len(sampler) * sampler.batch_size
    work = len(sampler) * a_step
    if step.objective.task.wants_all_candidates:
        queries = int((corpus.counts("query") > 0).sum())
        work += 3 * dim * queries * len(corpus.candidates)
    return work


def dense_weights(encoder: Encoder) -> int:
    """Return the number of weights of linear layers, which every row passes through."""
    layers = (module for module in encoder.modules() if isinstance(module, nn.Linear))
    return sum(layer.weight.numel() for layer in layers)


def distinct(rows: Tensor) -> int:
    """Return how many different rows there are."""
    return len(torch.unique(rows))


def different(counts: Tensor, drawn: int) -> float:
    """Return the expected number of different entities of `drawn` pairs, Σ 1 − (1 − p)^drawn with
    p = count/n, for counts [N]; drawing without replacement gives a few more."""
    share = counts.double() / counts.sum().clamp(min=1)
    return float((1 - (1 - share) ** drawn).sum())


@dataclass(frozen=True)
class FinalMetrics:
    """Metrics on the test pairs: of `model` and `popularity` by name, the number of queries that
    were ranked, and if they are not all, the metrics of each."""

    metrics: dict[str, dict[str, float]]
    queries: int
    sample: SampledRanking | None = None


def final_metrics(
    vectors: Mapping[str, Tensor],
    split: Split,
    names: Sequence[str],
    queries: int | None = None,
    seed: int = 0,
    together: Collectives = ALONE,
) -> FinalMetrics:
    """Return the metrics of embeddings and of popularity on a version's test pairs.

    Args:
        vectors: of each side, [N, D], in the rows of `split.training`.
        queries: number that is ranked, drawn by `seed`; None is all.
        together: processes that each rank a share of the queries, and have all numbers.
    """
    query, candidate = vectors["query"], vectors["candidate"]
    counts, test = split.training.counts("candidate"), test_relevance(split)
    drawn = test if queries is None else sample_queries(test, queries, seed)
    if len(drawn) == len(test):
        metrics = {
            "model": rank_metrics(query, candidate, test, names, together=together),
            "popularity": popularity_metrics(counts, test, names, together),
        }
        return FinalMetrics(metrics, len(test))
    one, popular = popularity(counts)
    ranked = {"model": (query, candidate), "popularity": (one.expand(len(query), 1), popular)}
    sample = SampledRanking(
        {n: query_metrics(*v, drawn, names, together=together) for n, v in ranked.items()},
        len(test),
    )
    return FinalMetrics(sample.means(), len(drawn), sample)
