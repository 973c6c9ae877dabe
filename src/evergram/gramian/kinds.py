"""The kinds of Gramian estimators with their settings, the table `[gramian]` of recipes.

Importing this does not import torch.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from evergram.kinds import Kinds, KindSettings, Needs, Positive, Trait, traits_where

if TYPE_CHECKING:
    from torch import Tensor

    from evergram.gramian.estimator import GramianEstimator


# Maximum γ of p ∝ count^γ: with a larger one, powers of large counts overflow float64 and one
# entity gets the whole measure.
LARGEST_POWER = 16


class EstimatorSettings(KindSettings):
    """Settings of an estimator; `build` makes it."""

    needs = (Trait.GRAMIANS, Trait.STEPS)

    @property
    def is_independent(self) -> bool:
        """Whether the estimator learns from separately drawn entities."""
        return False

    @property
    def samples_gradient(self) -> bool:
        """Whether the penalty's gradient is over the separately drawn entities, as in the sampling
        baselines of [G2] §4, and not over those of the step's pairs."""
        return False

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where({Trait.DRAWN_APART: self.is_independent})

    @abstractmethod
    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        """Return an estimator of the Gramian of one side under one measure.

        Args:
            dim: D.
            measure: [N], sums to 1.
            factors: [N, K], constants of each entity, see `EntityBatch`; K may be 0.
        """


class BatchEstimatorSettings(EstimatorSettings):
    """Settings of an estimator that learns from the batch of the previous step or, with a
    `sampler`, from independently drawn entities.

    `sampler` draws with r ∝ 1, √count or count; "adaptive" draws from a pool (r ∝ count) by each
    entity's contribution to the penalty.
    """

    # True if the estimator always uses separate draws, "linear" by default.
    draws_apart: ClassVar[bool] = False
    sampler: Literal["uniform", "sqrt", "linear", "adaptive"] | None = None
    batch_size: Annotated[Positive | None, Needs(Trait.DRAWN_APART)] = None

    @property
    def is_independent(self) -> bool:
        return self.sampler is not None or self.draws_apart


class ExactSettings(EstimatorSettings):
    """A pass over all entities before every step."""

    kind: Literal["exact"] = "exact"

    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        from evergram.gramian.estimator import ExactGramian

        return ExactGramian(dim, factors.shape[1])


class SampledSettings(BatchEstimatorSettings):
    """Only the last batch, as a matrix or as pairs, whichever is cheaper."""

    kind: Literal["sampled"] = "sampled"

    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        from evergram.gramian.estimator import SampledGramian

        return SampledGramian(dim, factors.shape[1])


class SAGramSettings(BatchEstimatorSettings):
    """A cache of all embeddings."""

    kind: Literal["sagram"] = "sagram"
    draws_apart = True
    beta: Annotated[Literal["1/n", "1"], BeforeValidator(str)] = "1/n"

    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        from evergram.gramian.sagram import SAGram

        return SAGram(dim, measure, factors, self.beta)


class SOGramSettings(BatchEstimatorSettings):
    """A moving average of batches; `rate` is α."""

    kind: Literal["sogram"] = "sogram"
    rate: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"

    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        from evergram.gramian.sogram import SOGram

        return SOGram(dim, factors.shape[1], self.rate)


ESTIMATORS: Kinds[EstimatorSettings] = Kinds(
    "gramian",
    (ExactSettings, SampledSettings, SAGramSettings, SOGramSettings),
    default="sogram",
)
