"""The settings of one training: a recipe's tables, with numbers in the place of "auto".

λ, l2 and the batch size scale with the data. With n distinct pairs of |A| queries and |B|
candidates, and squared error,

    λ = 66 (n / |A||B|)^¼,    l2 = ½ √(|A||B|) / n  under the uniform measure:

a denser matrix is pushed down more, and entities met rarely are held closer to zero. In the
words of implicit ALS, Σ_observed (1 − s)² + α₀ Σ_all s² + ρ_u Σ‖u‖² + ρ_v Σ‖v‖², these are
α₀ = 2 λ n / |A||B| and √(ρ_u ρ_v) = 1, whatever the data. Both are wide valleys: half of either
or twice as much costs a percent or two of Recall@20. They were found on the head of MovieLens 25M,
Gowalla and Amazon Beauty, on all pairs and on small parts of them; docs/measured.md has what they
come to there and elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import pow, sqrt
from typing import Self

import torch

from evergram.data.corpus import Corpus
from evergram.encoders.kinds import EncoderSettings
from evergram.errors import DataError
from evergram.gramian.kinds import EstimatorSettings
from evergram.kinds import Trait, unmet
from evergram.tasks.kinds import TaskSettings
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import AdamTraining, PriorSettings, StepSettings, Training

PENALTY, PENALTY_POWER = 66.0, 0.25
L2 = 0.5
TABLE_RATE, ADAM_RATE = 0.1, 0.01
# Fewer steps an epoch would make early stopping evaluate too often.
STEPS, LEAST_BATCH, LARGEST_BATCH = 32, 256, 4096
# Queries of a step that has all of their pairs, at most.
WHOLE_QUERIES = 256


@dataclass(frozen=True)
class Strengths:
    """λ of each measure, the weight of squared norms, and under which measure they are."""

    penalty: list[float]
    l2: float
    l2_measure: str


def strengths_of(recipe: Recipe, corpus: Corpus) -> Strengths:
    """Return a recipe's `task.penalty` and `task.l2` on this corpus, as numbers.

    Tasks with negatives of their own, or with a partition function, get no penalty and no l2 from
    "auto": their loss keeps scores apart by itself.
    """
    task = recipe.task
    auto = Strengths([0.0], 0.0, "penalty")
    if task.needs_penalty and "auto" in (task.penalty, task.l2):
        met = [int((corpus.counts(side) > 0).sum()) for side in ("query", "candidate")]
        auto = pointwise_strengths(len(corpus) - corpus.repeats, met[0], met[1])
    penalty = auto.penalty if task.penalty == "auto" else list(task.penalty)
    if task.l2 != "auto":
        return Strengths(penalty, task.l2, task.l2_measure or "examples")
    # Rows of unit norm have no length to weigh.
    l2 = 0.0 if recipe.model.normalize else auto.l2
    if l2 and task.pair_target == "value":
        # Scores are as large as the values, and squared norms grow with scores, not their squares.
        l2 *= _root_mean_square(corpus)
    return Strengths(penalty, l2, task.l2_measure or "penalty")


def rate_of(recipe: Recipe) -> float:
    """Return the learning rate of tables of ids: the recipe's number, or `TABLE_RATE`; of Adam
    `ADAM_RATE`. A sweep has none: 0."""
    training = recipe.training
    if not isinstance(training, StepSettings):
        return 0.0
    if training.table_rate != "auto":
        return training.table_rate
    return ADAM_RATE if isinstance(training, AdamTraining) else TABLE_RATE


def batch_size_of(recipe: Recipe, corpus: Corpus) -> int:
    """Return how many pairs a step has: the recipe's number; for "auto" a power of two from 256 to
    4,096 that makes 32 steps an epoch or a few more.

    A graph encoder passes over the graph in every step, so its batch is 4,096 whatever the data.
    Where queries are drawn with all of their pairs, a step has 256 queries, or as many as make 32
    steps an epoch, if these are fewer. A sweep has all pairs.
    """
    if not isinstance(recipe.training, StepSettings):
        return len(corpus)
    size = recipe.training.batch_size
    if size != "auto":
        return size
    if recipe.task.drawn == "whole_queries":
        met = int((corpus.counts("query") > 0).sum())
        queries = min(WHOLE_QUERIES, max(1, met // STEPS))
        return max(1, round(queries * len(corpus) / met))
    if recipe.model.passes_over_graph:
        return LARGEST_BATCH
    wanted = max(1, len(corpus) // STEPS)
    return min(max(1 << (wanted.bit_length() - 1), LEAST_BATCH), LARGEST_BATCH)


def pointwise_strengths(pairs: int, queries: int, candidates: int) -> Strengths:
    """Return λ and l2 of the squared loss for these numbers of distinct pairs and entities."""
    penalty = PENALTY * pow(pairs / (queries * candidates), PENALTY_POWER)
    return Strengths([penalty], L2 * sqrt(queries * candidates) / pairs, "penalty")


def _root_mean_square(corpus: Corpus) -> float:
    """Return √ of the mean squared value, summed in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for block in corpus.blocks():
        if block.value is None:
            raise DataError("task.target = 'value' needs a column 'value'; use 'one' without it.")
        total += block.value.double().square().mean() * (len(block) / len(corpus))
    return float(total.sqrt())


@dataclass(frozen=True)
class FitSettings:
    """The settings of one version's training: the recipe's tables, and numbers for one corpus in
    place of "auto"."""

    model: EncoderSettings
    task: TaskSettings
    prior: PriorSettings
    gramian: EstimatorSettings
    training: Training
    strengths: Strengths
    batch_size: int
    table_rate: float
    seed: int
    version: int

    @classmethod
    def of(cls, recipe: Recipe, corpus: Corpus, version: int) -> Self:
        """Return the settings by which a recipe trains a version on a corpus.

        Raises: DataError: the corpus lacks a column that "auto" is computed from.
        """
        return cls(
            model=recipe.model,
            task=recipe.task,
            prior=recipe.prior,
            gramian=recipe.gramian,
            training=recipe.training.decided(),
            strengths=strengths_of(recipe, corpus),
            batch_size=batch_size_of(recipe, corpus),
            table_rate=rate_of(recipe),
            seed=recipe.seed,
            version=version,
        )

    @property
    def traits(self) -> frozenset[Trait]:
        """What the settings have, for keys of [training] that need it."""
        tables = (self.model, self.task, self.prior, self.gramian, self.training)
        return frozenset[Trait]().union(*(table.traits for table in tables))

    def unmet(self, run: Collection[Trait]) -> str:
        """Return a sentence on the optimizer's or the tables' needs that a run does not meet; "" if
        it meets all.

        Args:
            run: the traits of the run.
        """
        found = unmet({"training": self.training}, self.traits | set(run), ())
        return found.get("training.optimizer") or found.get("training.tables", "")

    @property
    def version_seed(self) -> int:
        """The seed of the version's start and of its order of batches.

        With the same seed a version would be nearly compatible with the one before by accident,
        and the next recipe would not be.
        """
        return self.seed + 1_000_003 * self.version
