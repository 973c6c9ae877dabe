"""Pointwise losses ℓ(s, t) by name, and the kinds of tasks with the settings of `[task]`.

Importing this does not import torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from evergram.did_you_mean import did_you_mean
from evergram.gramian.kinds import LARGEST_POWER
from evergram.kinds import Kinds, KindSettings, Needs, Rate, Trait, Weight, as_list, traits_where

if TYPE_CHECKING:
    from torch import Tensor

    from evergram.data.corpus import Corpus
    from evergram.tasks.task import Task


# ℓ(scores [B], targets [B]) → [B], one number per pair, with the same dtype and device.
PairLoss = Callable[["Tensor", "Tensor"], "Tensor"]


def squared(score: Tensor, target: Tensor) -> Tensor:
    """Return ½(s − t)², [B]. [G2] §4.2."""
    return 0.5 * (score - target).square()


# Users may add functions.
LOSSES: dict[str, PairLoss] = {"squared": squared}


def loss_named(name: str) -> PairLoss:
    """Return a loss by name.

    Raises: ValueError: `LOSSES` does not have the name, has no function under it, or has another
        loss under a name of this package.
    """
    loss = LOSSES.get(name)
    if loss is None:
        raise ValueError(
            f"it must be one of {', '.join(map(repr, LOSSES))}, or your own loss's name in "
            "evergram.tasks.LOSSES of this process"
            f"{did_you_mean(name, LOSSES)}"
        )
    if name == "squared" and loss is not squared:
        raise ValueError(
            "it was replaced in LOSSES, but published recipes use it for a loss of this package; "
            "add your own loss under a new name"
        )
    if not callable(loss):
        raise ValueError(
            f"it is {type(loss).__name__} in LOSSES; put a function of scores and targets there"
        )
    return loss


# Bytes of a number.
FLOAT = 4
# Neighbours of each candidate, for `SoftmaxAllSettings`.
NEIGHBOURS = 10


# The measures of a side, each a power γ or a file of weights; a single one may be without a list.
Measures = Annotated[list[float | str], Field(min_length=1), BeforeValidator(as_list)]


def _penalty(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Raise one error instead of one for each allowed type."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError("it must be a number ≥ 0, a list of them, or 'auto'") from None


class TaskSettings(KindSettings):
    """Settings of an objective: a loss on observed pairs plus λ times the penalty on all pairs.

    `build` makes the task; the class attributes say what training must provide for it.
    """

    # Draw each pair once per epoch; a query and one of its pairs; or queries with all their pairs.
    drawn: ClassVar[Literal["examples", "queries", "whole_queries"]] = "examples"
    # Same as in the `Task`.
    wants_negatives: ClassVar[bool] = False
    wants_all_candidates: ClassVar[bool] = False
    # True if only the penalty lowers unobserved scores; then `penalty = "auto"` is above 0.
    needs_penalty: ClassVar[bool] = False

    # λ, one per measure; "auto" depends on the data, see `evergram.training.build`.
    penalty: Annotated[
        Annotated[list[Weight], Field(min_length=1), BeforeValidator(as_list)] | Literal["auto"],
        WrapValidator(_penalty),
    ] = "auto"
    # Weight of squared norms.
    l2: Annotated[Weight | Literal["auto"], Needs(Trait.FREE_NORMS, free=("auto", 0))] = "auto"
    # Norms of examples, or under the penalty's (first) measure. None is "penalty" for l2 = "auto"
    # and "examples" for a number.
    l2_measure: Annotated[
        Literal["examples", "penalty"] | None, Needs(Trait.NORMS, Trait.FREE_NORMS)
    ] = None
    # γ of p_a ∝ count_a^γ: 0 is uniform, 1 is the measure of examples; or a file of weights.
    query_measure: Annotated[Measures, Needs(Trait.MEASURES)] = Field(default=[0.0])
    candidate_measure: Annotated[Measures, Needs(Trait.MEASURES)] = Field(default=[0.0])
    # Weights of observed pairs in the penalty: excluded, or increased by a column `weight`.
    sparse: Literal["none", "exclude", "weight"] = "none"

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        lengths = {len(self.query_measure), len(self.candidate_measure)}
        if self.penalty == "auto" and max(lengths) > 1:
            raise ValueError(
                "task.penalty = 'auto' is only for one measure; give a list with a number for each "
                "entry of task.query_measure and task.candidate_measure"
            )
        if len({*lengths, 1 if self.penalty == "auto" else len(self.penalty)}) > 1:
            raise ValueError(
                "task.penalty, task.query_measure and task.candidate_measure must have the same "
                "length, one entry per measure"
            )
        for side in ("query", "candidate"):
            for power in self.measures_of(side):
                if isinstance(power, float) and not 0 <= power <= LARGEST_POWER:
                    raise ValueError(
                        f"task.{side}_measure is {power}; a power must be from 0 to {LARGEST_POWER}"
                    )
        return self

    def measures_of(self, side: str) -> list[float | str]:
        """Return the measures of a side: powers of the counts, or files of weights."""
        return self.query_measure if side == "query" else self.candidate_measure

    @property
    def traits(self) -> frozenset[Trait]:
        # See `strengths_of` for the numbers of "auto".
        has_penalty = self.needs_penalty if self.penalty == "auto" else any(self.penalty)
        has_norms = self.needs_penalty if self.l2 == "auto" else self.l2 > 0
        l2_measure = self.l2_measure or ("penalty" if self.l2 == "auto" else "examples")
        return traits_where(
            {
                Trait.PENALTY: has_penalty or self.sparse != "none",
                Trait.GRAMIANS: has_penalty,
                Trait.NORMS: has_norms,
                Trait.MEASURES: has_penalty or (has_norms and l2_measure == "penalty"),
                Trait.LAYERS: self.has_parameters,
                Trait.SINGLE_PAIRS: self.drawn != "whole_queries",
                Trait.SOME_CANDIDATES: not self.wants_all_candidates,
                Trait.BATCH_PRODUCTS: self.wants_all_candidates,
            }
        )

    @property
    def pair_target(self) -> Literal["one", "value"]:
        """The target of an observed pair: 1 for "one", its value for "value"."""
        return "one"

    @property
    def has_parameters(self) -> bool:
        """Whether the task has parameters, which are trained with the model."""
        return False

    def candidates_bytes(self, candidates: int, dim: int) -> int:
        """Return a lower bound of the bytes that a step needs besides the model: candidates'
        embeddings and their gradients if the task uses all candidates, else 0."""
        return 3 * FLOAT * candidates * dim if self.wants_all_candidates else 0

    @abstractmethod
    def build(self, corpus: Corpus) -> Task:
        """Return the task for this corpus. Raises: DataError: the corpus lacks what it needs."""


class PointwiseSettings(TaskSettings):
    """Each observed pair is pulled to a target score; `loss` is a name in `LOSSES`."""

    kind: Literal["pointwise"] = "pointwise"
    needs_penalty = True
    loss: Annotated[str, AfterValidator(lambda name: loss_named(name) and name)] = "squared"
    target: Literal["one", "value"] = "one"

    @property
    def pair_target(self) -> Literal["one", "value"]:
        return self.target

    @property
    def traits(self) -> frozenset[Trait]:
        return super().traits | traits_where({Trait.SQUARED_LOSS: self.loss == "squared"})

    def build(self, corpus: Corpus) -> Task:
        from evergram.tasks.task import Pointwise

        return Pointwise(loss_named(self.loss))


class BPRSettings(TaskSettings):
    """Each observed pair should score above a pair that was not observed."""

    kind: Literal["bpr"] = "bpr"
    drawn: ClassVar[Literal["examples", "queries", "whole_queries"]] = "queries"
    wants_negatives = True

    def build(self, corpus: Corpus) -> Task:
        from evergram.tasks.task import BPR

        return BPR()


class TemperedSettings(TaskSettings):
    """A task that divides scores by a `temperature`."""

    temperature: Rate = 1.0


class SoftmaxSettings(TemperedSettings):
    """The observed candidate against the others of its batch."""

    kind: Literal["softmax"] = "softmax"

    def build(self, corpus: Corpus) -> Task:
        from evergram.tasks.task import Softmax

        return Softmax(len(corpus.candidates), self.temperature)


class SoftmaxAllSettings(TemperedSettings):
    """The observed candidate against all others, by the exact softmax.

    `push` weighs the log-partition relative to the pairs' scores. No candidate gets more than
    `largest_share` of a query's softmax. `neighbour_share` of a pair's pull goes to the candidate's
    neighbours, those with the most similar queries.
    """

    kind: Literal["softmax_all"] = "softmax_all"
    drawn: ClassVar[Literal["examples", "queries", "whole_queries"]] = "whole_queries"
    wants_all_candidates = True
    push: Rate = 1.0
    largest_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    neighbour_share: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def build(self, corpus: Corpus) -> Task:
        from evergram.tasks.softmax_all import CandidateNeighbours, SoftmaxAll, check_share

        if self.largest_share is not None:
            check_share(self.largest_share, len(corpus.candidates))
        neighbours = None
        if self.neighbour_share:
            pairs = corpus.column("query"), corpus.column("candidate")
            sizes = len(corpus.queries), len(corpus.candidates)
            neighbours = CandidateNeighbours.of(*pairs, *sizes, NEIGHBOURS)
        return SoftmaxAll(
            self.temperature,
            push=self.push,
            largest_share=self.largest_share,
            neighbours=neighbours,
            neighbour_share=self.neighbour_share,
        )


TASKS: Kinds[TaskSettings] = Kinds(
    "task",
    (
        PointwiseSettings,
        BPRSettings,
        SoftmaxSettings,
        SoftmaxAllSettings,
    ),
)
