"""The kinds of Gramian estimators, with the settings of each; recipes' `[gramian]` is made of them.

Importing this does not import torch.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from evergram.kinds import Kinds, KindSettings, Positive, Weight, traits_where
from evergram.requirements import Needs, Trait

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
    # True of an estimator without a row for each entity, so that processes may divide these.
    divides: ClassVar[bool] = False

    @property
    def is_independent(self) -> bool:
        """Whether the estimator learns from entities drawn apart."""
        return False

    @property
    def samples_gradient(self) -> bool:
        """Whether the penalty's gradient is over the entities that were drawn apart."""
        return False

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where({Trait.DRAWN_APART: self.is_independent, Trait.NO_ROWS: self.divides})

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


class BatchEstimatorSettings(EstimatorSettings):
    """Settings of an estimator that learns from batches: from the batch of the step before, or from
    entities that `sampler` draws apart.

    `sampler` draws with r ∝ 1, √count or count; or, "adaptive", of a pool (r ∝ count) by what each
    contributes to the penalty. With `gradient` "sampled" the penalty's gradient is over those that
    it draws: the sampling baselines of [G2] §4.
    """

    # True of an estimator that learns from entities drawn apart alone.
    draws_apart: ClassVar[bool] = False
    batch: Literal["previous", "independent"] | None = None
    sampler: Annotated[
        Literal["uniform", "sqrt", "linear", "adaptive"], Needs(Trait.DRAWN_APART)
    ] = "linear"
    batch_size: Annotated[Positive | None, Needs(Trait.DRAWN_APART)] = None
    gradient: Annotated[Literal["examples", "sampled"], Needs(Trait.DRAWN_APART)] = "examples"

    @model_validator(mode="after")
    def _draws_when_it_can(self) -> Self:
        if self.sampler == "adaptive" and self.wants_before:
            raise ValueError(
                "gramian.sampler = 'adaptive' draws by the embeddings of the step itself, and "
                f"gramian.kind = {self.kind!r} must know the entities one step before; set "
                "gramian.kind = 'sogram' or gramian.sampler = 'linear'"
            )
        if self.batch == "previous" and self.draws_apart:
            raise ValueError(
                f"gramian.batch is 'previous', and gramian.kind = {self.kind!r} learns from "
                "entities drawn apart alone; leave gramian.batch out, or set gramian.kind = "
                "'sogram'"
            )
        return self

    @property
    def is_independent(self) -> bool:
        return self.batch == "independent" or self.draws_apart

    @property
    def samples_gradient(self) -> bool:
        return self.gradient == "sampled"


class ExactSettings(EstimatorSettings):
    """A full pass before every step."""

    kind: Literal["exact"] = "exact"

    def build(
        self, dim: int, measure: Tensor, factors: Tensor, file: Path | None = None
    ) -> GramianEstimator:
        from evergram.gramian.exact import ExactGramian

        return ExactGramian(dim, factors.shape[1])


class SampledSettings(BatchEstimatorSettings):
    """The last batch alone. `form`: as a matrix, as pairs, or whichever is cheaper."""

    kind: Literal["sampled"] = "sampled"
    divides = True
    form: Literal["auto", "gramian", "pairs"] = "auto"

    def build(
        self, dim: int, measure: Tensor, factors: Tensor, file: Path | None = None
    ) -> GramianEstimator:
        from evergram.gramian.sampled import SampledGramian

        return SampledGramian(dim, factors.shape[1], self.form)


class SAGramSettings(BatchEstimatorSettings):
    """A cache of every embedding. `memory`: MiB above which the cache is kept on disk."""

    kind: Literal["sagram"] = "sagram"
    draws_apart = True
    beta: Annotated[Literal["1/n", "1"], BeforeValidator(str)] = "1/n"
    memory: Weight = 4096.0

    def build(
        self, dim: int, measure: Tensor, factors: Tensor, file: Path | None = None
    ) -> GramianEstimator:
        from evergram.gramian.sagram import SAGram

        is_large = 4 * len(measure) * dim > self.memory * 2**20
        return SAGram(dim, measure, factors, self.beta, file if is_large else None)


class AverageSettings(BatchEstimatorSettings):
    """Keys of the moving averages: α, or "auto"; step t has α t^-decay."""

    divides = True
    rate: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.0


class SOGramSettings(AverageSettings):
    """A moving average of batches. `correct_start`: whether its zero start is divided out."""

    kind: Literal["sogram"] = "sogram"
    correct_start: bool = True

    def build(
        self, dim: int, measure: Tensor, factors: Tensor, file: Path | None = None
    ) -> GramianEstimator:
        from evergram.gramian.sogram import SOGram

        return SOGram(dim, factors.shape[1], self.rate, self.decay, self.correct_start)


class StormSettings(AverageSettings):
    """A moving average that moves along with the embeddings."""

    kind: Literal["storm"] = "storm"
    wants_before = True

    def build(
        self, dim: int, measure: Tensor, factors: Tensor, file: Path | None = None
    ) -> GramianEstimator:
        from evergram.gramian.storm import Storm

        return Storm(dim, factors.shape[1], self.rate, self.decay)


ESTIMATORS: Kinds[EstimatorSettings] = Kinds(
    "gramian",
    (ExactSettings, SampledSettings, SAGramSettings, SOGramSettings, StormSettings),
    default="sogram",
)
