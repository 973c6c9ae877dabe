"""How many queries an evaluation ranks, so that it takes no more than a share of a run's work.

Work is counted in multiply-adds of the data's and the model's sizes, not in seconds: a decision by
the clock would end the same run differently on another machine, or when it is resumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
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
    """The queries that an evaluation ranks.

    Args:
        queries: so many, of all.
        every: the epochs between two evaluations are so many times as many.
    """

    queries: int
    every: int = 1


@dataclass(frozen=True)
class RankingWork:
    """The multiply-adds of evaluations.

    Args:
        queries: all that could be ranked.
        each: to rank one.
        fixed: to embed everything once.
    """

    queries: int
    each: int
    fixed: int = 0

    @classmethod
    def of(cls, encoder: Encoder, queries: int, corpus: Corpus) -> RankingWork:
        """Return the work of ranking a corpus's catalogue for so many queries."""
        each = len(corpus.candidates) * (encoder.dim + SELECTING)
        entities = len(corpus.queries) + len(corpus.candidates)
        return cls(queries, each, entities * dense_weights(encoder))

    def plan(self, share: EvaluateShare, training: int) -> EvaluationPlan:
        """Return how many queries to rank after so much `training`, in multiply-adds."""
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
    """Return the multiply-adds of an epoch of training, or fewer: terms that are left out make
    evaluation take a smaller share, never a larger one.

    For each pair: its score and the two gradients of it, and each row's update, 6 D; for both rows
    D² for each Gramian that a row is multiplied by or folded into, and D² where gradients are
    preconditioned. For each different entity of a batch, 3 for each weight of a linear layer. A
    pass over the graph sends two messages a pair forth and back, and is made in each step. A task
    that wants all candidates scores them for each query once or more, with two gradients of it.
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
    """Return the weights of linear layers, which every row of an encoder passes through; tables,
    of which a row reads one line, do not count."""
    layers = (module for module in encoder.modules() if isinstance(module, nn.Linear))
    return sum(layer.weight.numel() for layer in layers)


def distinct(rows: Tensor) -> int:
    """Return how many different rows there are."""
    return len(torch.unique(rows))


def different(counts: Tensor, drawn: int) -> float:
    """Return how many different entities so many pairs have on average, Σ 1 − (1 − p)^drawn with
    p = count/n; pairs that are drawn without replacement have a few more.

    Args:
        counts: [N], pairs of each entity.
    """
    share = counts.double() / counts.sum().clamp(min=1)
    return float((1 - (1 - share) ** drawn).sum())
