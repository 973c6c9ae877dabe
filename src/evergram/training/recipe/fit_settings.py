"""The settings of one training: a recipe's tables, with numbers in the place of "auto"."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from evergram.data.corpus import Corpus
from evergram.encoders.kinds import EncoderSettings
from evergram.gramian.kinds import EstimatorSettings
from evergram.requirements import Trait, unmet
from evergram.tasks.kinds import TaskSettings
from evergram.training.priors import PriorSettings
from evergram.training.recipe import Recipe
from evergram.training.recipe.automatic import Strengths, batch_size_of, rate_of, strengths_of
from evergram.training.recipe.training import StepSettings, Training


@dataclass(frozen=True)
class FitSettings:
    """The settings of one version's training on one corpus.

    Args:
        model, task, prior, gramian, training: tables of the recipe.
        strengths: λ of each measure and the weight of squared norms.
        batch_size: pairs of a step.
        table_rate: learning rate of tables of ids.
        seed: of the recipe.
        version: number of the version that is trained.
    """

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
    def rates(self) -> dict[str, float]:
        """The learning rates that parameters of the encoder have, by key of [training]."""
        training = self.training
        if not isinstance(training, StepSettings):
            return {}
        rates = {
            "table_rate": self.table_rate,
            "feature_rate": training.feature_rate,
            "layer_rate": training.layer_rate,
        }
        return {name: rate for name, rate in rates.items() if name in self.model.rates}

    @property
    def version_seed(self) -> int:
        """The seed of the version's start and of its order of batches.

        With the same seed a version would be nearly compatible with the one before by accident,
        and the next recipe would not be.
        """
        return self.seed + 1_000_003 * self.version
