"""The settings of one training: a recipe's tables, with numbers in the place of "auto"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from evergram.data.corpus import Corpus
from evergram.training.recipe import GramianRecipe, ModelRecipe, PriorRecipe, Recipe, TaskRecipe
from evergram.training.recipe.automatic import Strengths, batch_size_of, rate_of, strengths_of
from evergram.training.recipe.training import TrainingRecipe


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

    model: ModelRecipe
    task: TaskRecipe
    prior: PriorRecipe
    gramian: GramianRecipe
    training: TrainingRecipe
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
        training = recipe.training
        if training.optimizer == "auto":
            training = training.model_copy(update={"optimizer": "adaptive"})
        return cls(
            model=recipe.model,
            task=recipe.task,
            prior=recipe.prior,
            gramian=recipe.gramian,
            training=training,
            strengths=strengths_of(recipe, corpus),
            batch_size=batch_size_of(recipe, corpus),
            table_rate=rate_of(recipe),
            seed=recipe.seed,
            version=version,
        )

    @property
    def rates(self) -> dict[str, float]:
        """The learning rates that parameters of the encoder have, by key of [training]."""
        training = self.training
        if training.sweeps:
            return {}
        rates = {
            "table_rate": self.table_rate,
            "feature_rate": training.feature_rate,
            "layer_rate": training.layer_rate,
        }
        return {name: rate for name, rate in rates.items() if name in self.model.chosen.rates}

    @property
    def version_seed(self) -> int:
        """The seed of the version's start and of its order of batches.

        With the same seed a version would be nearly compatible with the one before by accident,
        and the next recipe would not be.
        """
        return self.seed + 1_000_003 * self.version
