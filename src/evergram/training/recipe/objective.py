"""The tables [model], [task], [prior] and [gramian]: a model and its objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from evergram.encoders.kinds import ENCODERS, EncoderSettings, at_version
from evergram.gramian.kinds import ESTIMATORS, LARGEST_POWER, EstimatorSettings
from evergram.kinds import PerVersion, Positive, Rate, Weight, as_list
from evergram.tasks.kinds import TASKS, TaskSettings
from evergram.training.priors.kinds import PRIORS, PriorSettings
from evergram.training.recipe.table import KindTable


def _exponent(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Say in one clause what may stand here, in place of what each form of it lacks."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError("it must be a number from -1 to 1, or 'auto'") from None


class ModelRecipe(KindTable):
    """The encoder. `dim` may be a list, one entry a version; the last holds for all later ones."""

    kinds: ClassVar[Mapping[str, type[EncoderSettings]]] = ENCODERS
    kind: str = "factorization"
    dim: PerVersion = Field(default=[64])
    scale: Rate = 0.1
    # What the tables start from: Gaussian rows, or vectors made of the pairs, see `starts/`.
    start: Literal["random", "smooth", "svd", "als"] = "random"
    # Rows of unit norm.
    normalize: bool = False
    # γ: published candidates are multiplied by max(training pairs, 1)^γ; "auto" is chosen by the
    # selection pairs, see `evergram.training.monitors.popularity_choice`.
    popularity: Annotated[
        Annotated[float, Field(ge=-1, le=1)] | Literal["auto"], WrapValidator(_exponent)
    ] = 0.0

    @model_validator(mode="after")
    def _popularity_of_unit_rows(self) -> ModelRecipe:
        if self.popularity and not self.normalize:
            raise ValueError(
                f"model.popularity is {self.popularity!r}, and rows that are free to grow have the "
                "popularity of their candidates in their norms; set model.normalize = true, or "
                "leave model.popularity at 0"
            )
        return self

    @property
    def chosen(self) -> EncoderSettings:
        return cast(EncoderSettings, super().chosen)

    @property
    def exponent(self) -> float | None:
        """γ of `popularity`: None without a factor, and 0 for "auto" until it is chosen."""
        if self.popularity == "auto":
            return 0.0
        return self.popularity or None

    def dim_of(self, version: int) -> int:
        """Return D of a version."""
        return at_version(self.dim, version)

    def as_of(self, version: int) -> ModelRecipe:
        """Return the model that is at every version what this one is at `version`."""
        lists = {name: getattr(self, name) for name in ("dim", *self.chosen.per_version)}
        return self.model_copy(
            update={name: [at_version(values, version)] for name, values in lists.items()}
        )


# One measure of a side, or a list of them: a power γ, or a file of weights.
Measures = Annotated[list[float | str], Field(min_length=1), BeforeValidator(as_list)]


def _penalty(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Say in one clause what may stand here, in place of what each form of it lacks."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError("it must be a number ≥ 0, a list of them, or 'auto'") from None


class TaskRecipe(KindTable):
    """The objective: a loss on observed pairs, and λ times the penalty on all pairs."""

    kinds: ClassVar[Mapping[str, type[TaskSettings]]] = TASKS
    kind: str = "pointwise"
    # How pairs are drawn: each once an epoch, or a query first; absent, as the task wants them.
    positives: Literal["examples", "queries", "whole_queries"] | None = None
    # λ, one a measure; "auto" scales with the data, see `evergram.training.recipe.automatic`.
    penalty: Annotated[
        Annotated[list[Weight], Field(min_length=1), BeforeValidator(as_list)] | Literal["auto"],
        WrapValidator(_penalty),
    ] = "auto"
    # Squared norms: of every example's, or under the penalty's (first) measure.
    l2: Weight | Literal["auto"] = "auto"
    # "penalty" for an automatic l2, "examples" for a given one, where it is absent.
    l2_measure: Literal["examples", "penalty"] | None = None
    # p_a ∝ count_a^measure: 0 is uniform, 1 is the measure of examples; or a file of weights.
    query_measure: Measures = Field(default=[0.0])
    candidate_measure: Measures = Field(default=[0.0])
    # The sparse part of the penalty's weights: observed pairs taken out, or a column `weight`.
    sparse: Literal["none", "exclude", "weight"] = "none"
    # Global orthogonal regularisation of a side.
    query_orthogonal: Weight = 0.0
    candidate_orthogonal: Weight = 0.0

    @model_validator(mode="after")
    def _one_each(self) -> TaskRecipe:
        lengths = {len(self.query_measure), len(self.candidate_measure)}
        if self.penalty == "auto" and max(lengths) > 1:
            raise ValueError(
                "task.penalty = 'auto' is one λ for one measure; give a list of numbers, one for "
                "each entry of task.query_measure and task.candidate_measure"
            )
        if len({*lengths, 1 if self.penalty == "auto" else len(self.penalty)}) > 1:
            raise ValueError(
                "task.penalty, task.query_measure and task.candidate_measure must be as long as "
                "one another, one entry a measure"
            )
        for side in ("query", "candidate"):
            for power in getattr(self, f"{side}_measure"):
                if isinstance(power, float) and not 0 <= power <= LARGEST_POWER:
                    raise ValueError(
                        f"task.{side}_measure is {power}; a power must be 0 to {LARGEST_POWER}"
                    )
        return self

    @model_validator(mode="after")
    def _draws_what_the_task_can_use(self) -> TaskRecipe:
        chosen = self.chosen
        if self.positives == "whole_queries" != chosen.draws:
            raise ValueError(
                f"task.positives = 'whole_queries' makes batches that vary in size, and task.kind "
                f"= {self.kind!r} is a mean over batches of one size; set task.positives = "
                "'examples' or 'queries', or task.kind = 'softmax_all'"
            )
        if chosen.sees_whole_queries and self.drawn != "whole_queries":
            raise ValueError(
                f"task.positives is {self.drawn!r}, and task.denominator = 'unobserved' and "
                "task.positive_temperature need all pairs of a query at once; leave "
                "task.positives out"
            )
        return self

    @property
    def chosen(self) -> TaskSettings:
        return cast(TaskSettings, super().chosen)

    @property
    def drawn(self) -> str:
        """How pairs are drawn: "examples", "queries" or "whole_queries"."""
        return self.positives or self.chosen.draws

    def measures_of(self, side: str) -> list[float | str]:
        """Return the measures of a side: powers of the counts, or files of weights."""
        return self.query_measure if side == "query" else self.candidate_measure


class PriorRecipe(KindTable):
    """The low-rank prior ⟨q_a, r_b⟩ that the penalty pulls unobserved scores towards."""

    kinds: ClassVar[Mapping[str, type[PriorSettings]]] = PRIORS
    kind: str = "zero"

    @property
    def chosen(self) -> PriorSettings:
        return cast(PriorSettings, super().chosen)


class GramianRecipe(KindTable):
    """How the Gramians are estimated."""

    kinds: ClassVar[Mapping[str, type[EstimatorSettings]]] = ESTIMATORS
    kind: str = "sogram"
    # Estimators learn from the batch before, or from entities that `sampler` draws apart; absent,
    # from the batch before if the kind can.
    batch: Literal["previous", "independent"] | None = None
    # With r ∝ 1, √count or count; or of a pool (r ∝ count) by what each contributes to the penalty.
    sampler: Literal["uniform", "sqrt", "linear", "adaptive"] = "linear"
    batch_size: Positive | None = None
    # Entities of that pool; absent, eight times as many as are kept of it.
    pool_size: Positive | None = None
    # The penalty's gradient is over the examples of a step, or over those that `sampler` draws: the
    # sampling baselines of [G2] §4.
    gradient: Literal["examples", "sampled"] = "examples"

    @model_validator(mode="after")
    def _draws_when_it_can(self) -> GramianRecipe:
        if self.sampler == "adaptive" and self.chosen.wants_before:
            raise ValueError(
                "gramian.sampler = 'adaptive' draws by the embeddings of the step itself, and "
                f"gramian.kind = {self.kind!r} must know the entities one step before; set "
                "gramian.kind = 'sogram' or gramian.sampler = 'linear'"
            )
        if self.batch == "previous" and self.chosen.draws_apart:
            raise ValueError(
                f"gramian.batch is 'previous', and gramian.kind = {self.kind!r} learns from "
                "entities drawn apart alone; leave gramian.batch out, or set gramian.kind = "
                "'sogram'"
            )
        return self

    @property
    def chosen(self) -> EstimatorSettings:
        return cast(EstimatorSettings, super().chosen)

    @property
    def is_independent(self) -> bool:
        """Whether the estimator learns from entities drawn apart."""
        return self.batch == "independent" or self.chosen.draws_apart
