"""The kinds of Gramian estimators, with the settings of each; recipes' `[gramian]` is made of them.

Importing this does not import torch.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from evergram.kinds import Kinds, KindSettings, Weight, table_of

if TYPE_CHECKING:
    from torch import Tensor

    from evergram.gramian.estimator import GramianEstimator


# γ of p ∝ count^γ, at most: of a larger one, counts of many rows are past float64, and one entity
# has all of the measure.
LARGEST_POWER = 16


class EstimatorSettings(KindSettings):
    """Settings of an estimator, and how it is made."""

    # False of an estimator that looks at every entity before each step instead.
    learns_from_batches: ClassVar[bool] = True
    # True of an estimator that must know a step's entities one step before, see `EntityBatch`.
    wants_before: ClassVar[bool] = False
    # True of an estimator that learns from entities drawn apart alone.
    draws_apart: ClassVar[bool] = False

    @abstractmethod
    def build(
        self, dim: int, measure: Tensor, factors: Tensor, file: Path | None = None
    ) -> GramianEstimator:
        """Return an estimator of the Gramian of one side under one measure.

        Args:
            dim: D.
            measure: [N], each entity's share; they add up to 1.
            factors: [N, K], what stands beside each embedding; K may be 0.
            file: where state that is too large for memory may go; None keeps it in memory.
        """


class ExactSettings(EstimatorSettings):
    """A full pass before every step."""

    kind = "exact"
    learns_from_batches = False

    def build(
        self, dim: int, measure: Tensor, factors: Tensor, file: Path | None = None
    ) -> GramianEstimator:
        from evergram.gramian.exact import ExactGramian

        return ExactGramian(dim, factors.shape[1])


class SampledSettings(EstimatorSettings):
    """The last batch alone. `form`: as a matrix, as pairs, or whichever is cheaper."""

    kind = "sampled"
    form: Literal["auto", "gramian", "pairs"] = "auto"

    def build(
        self, dim: int, measure: Tensor, factors: Tensor, file: Path | None = None
    ) -> GramianEstimator:
        from evergram.gramian.sampled import SampledGramian

        return SampledGramian(dim, factors.shape[1], self.form)


class SAGramSettings(EstimatorSettings):
    """A cache of every embedding. `memory`: MiB above which the cache is kept on disk."""

    kind = "sagram"
    draws_apart = True
    beta: Annotated[Literal["1/n", "1"], BeforeValidator(str)] = "1/n"
    memory: Weight = 4096.0

    def build(
        self, dim: int, measure: Tensor, factors: Tensor, file: Path | None = None
    ) -> GramianEstimator:
        from evergram.gramian.sagram import SAGram

        is_large = 4 * len(measure) * dim > self.memory * 2**20
        return SAGram(dim, measure, factors, self.beta, file if is_large else None)


class AverageSettings(EstimatorSettings):
    """Keys of the moving averages: α, or "auto"; step t has α t^-decay."""

    rate: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.0


class SOGramSettings(AverageSettings):
    """A moving average of batches. `correct_start`: whether its zero start is divided out."""

    kind = "sogram"
    correct_start: bool = True

    def build(
        self, dim: int, measure: Tensor, factors: Tensor, file: Path | None = None
    ) -> GramianEstimator:
        from evergram.gramian.sogram import SOGram

        return SOGram(dim, factors.shape[1], self.rate, self.decay, self.correct_start)


class StormSettings(AverageSettings):
    """A moving average that moves along with the embeddings."""

    kind = "storm"
    wants_before = True

    def build(
        self, dim: int, measure: Tensor, factors: Tensor, file: Path | None = None
    ) -> GramianEstimator:
        from evergram.gramian.storm import Storm

        return Storm(dim, factors.shape[1], self.rate, self.decay)


ESTIMATORS: Kinds[EstimatorSettings] = table_of(
    ExactSettings, SampledSettings, SAGramSettings, SOGramSettings, StormSettings
)
