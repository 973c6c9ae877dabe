"""The kinds of Gramian estimators, with the settings of each; recipes' `[gramian]` is made of them.

Importing this does not import torch.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from evergram.kinds import Kinds, KindSettings, Needs, Positive, Trait, traits_where

if TYPE_CHECKING:
    from torch import Tensor

    from evergram.gramian.estimator import GramianEstimator


# γ of p ∝ count^γ, at most: of a larger one, counts of many rows are past float64, and one entity
# has all of the measure.
LARGEST_POWER = 16


class EstimatorSettings(KindSettings):
    """Settings of an estimator that looks at every entity before each step, and how it is made."""

    needs = (Trait.GRAMIANS, Trait.STEPS)
    # True of an estimator that must know a step's entities one step before, see `EntityBatch`.
    wants_before: ClassVar[bool] = False

    @property
    def is_independent(self) -> bool:
        """Whether the estimator learns from entities drawn apart."""
        return False

    @property
    def samples_gradient(self) -> bool:
        """Whether the penalty's gradient is over the entities that were drawn apart, as in the
        sampling baselines of [G2] §4, and not over those of the step's pairs."""
        return False

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where({Trait.DRAWN_APART: self.is_independent})

    @abstractmethod
    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        """Return an estimator of the Gramian of one side under one measure.

        Args:
            dim: D.
            measure: [N], each entity's share; they add up to 1.
            factors: [N, K], what stands beside each embedding; K may be 0.
        """


class BatchEstimatorSettings(EstimatorSettings):
    """Settings of an estimator that learns from batches: from the batch of the step before or,
    with a `sampler`, from entities drawn independently of it.

    `sampler` draws with r ∝ 1, √count or count; or, "adaptive", from a pool (r ∝ count) by what
    each entity contributes to the penalty.
    """

    # True of an estimator that always samples independently, by "linear" unless set.
    draws_apart: ClassVar[bool] = False
    sampler: Literal["uniform", "sqrt", "linear", "adaptive"] | None = None
    batch_size: Annotated[Positive | None, Needs(Trait.DRAWN_APART)] = None

    @model_validator(mode="after")
    def _draws_when_it_can(self) -> Self:
        if self.sampler == "adaptive" and self.wants_before:
            raise ValueError(
                "gramian.sampler = 'adaptive' draws by the embeddings of the step itself, and "
                f"gramian.kind = {self.kind!r} must know the entities one step before; set "
                "gramian.kind = 'sogram' or gramian.sampler = 'linear'"
            )
        return self

    @property
    def is_independent(self) -> bool:
        return self.sampler is not None or self.draws_apart


class ExactSettings(EstimatorSettings):
    """A full pass before every step."""

    kind: Literal["exact"] = "exact"

    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        from evergram.gramian.estimator import ExactGramian

        return ExactGramian(dim, factors.shape[1])


class SampledSettings(BatchEstimatorSettings):
    """The last batch alone, as a matrix or as pairs, whichever is cheaper."""

    kind: Literal["sampled"] = "sampled"

    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        from evergram.gramian.estimator import SampledGramian

        return SampledGramian(dim, factors.shape[1])


class SAGramSettings(BatchEstimatorSettings):
    """A cache of every embedding."""

    kind: Literal["sagram"] = "sagram"
    draws_apart = True
    beta: Annotated[Literal["1/n", "1"], BeforeValidator(str)] = "1/n"

    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        from evergram.gramian.sagram import SAGram

        return SAGram(dim, measure, factors, self.beta)


class AverageSettings(BatchEstimatorSettings):
    """Settings of a moving average: α, or "auto"."""

    rate: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"


class SOGramSettings(AverageSettings):
    """A moving average of batches."""

    kind: Literal["sogram"] = "sogram"

    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        from evergram.gramian.sogram import SOGram

        return SOGram(dim, factors.shape[1], self.rate)


class StormSettings(AverageSettings):
    """A moving average that moves along with the embeddings."""

    kind: Literal["storm"] = "storm"
    wants_before = True

    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        from evergram.gramian.sogram import Storm

        return Storm(dim, factors.shape[1], self.rate)


ESTIMATORS: Kinds[EstimatorSettings] = Kinds(
    "gramian",
    (ExactSettings, SampledSettings, SAGramSettings, SOGramSettings, StormSettings),
    default="sogram",
)
