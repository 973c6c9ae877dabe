"""The kinds of tasks, with the settings of each; recipes' `[task]` is made of them.

Importing this does not import torch.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from evergram.errors import DataError
from evergram.kinds import KindSettings, Positive, Rate, Weight, table_of
from evergram.tasks.pointwise_losses import loss_named

if TYPE_CHECKING:
    from evergram.data.corpus import Corpus
    from evergram.tasks.task import Task

# Bytes of a number, and of a row's index.
FLOAT, INDEX = 4, 8


class TaskSettings(KindSettings):
    """Settings of a task, what training must provide for it, and how it is made."""

    # Default of drawing pairs: each once an epoch, a query and then one of its pairs, or queries
    # with all of their pairs.
    draws: ClassVar[Literal["examples", "queries", "whole_queries"]] = "examples"
    # As the class attributes of the `Task` that is built.
    wants_negatives: ClassVar[bool] = False
    wants_means: ClassVar[bool] = False
    wants_all_candidates: ClassVar[bool] = False
    # True if only the penalty lowers unobserved scores, so that `penalty = "auto"` is above 0.
    needs_penalty: ClassVar[bool] = False

    @property
    def pair_target(self) -> Literal["one", "value"]:
        """The target of an observed pair: "one" for 1, or "value" for its value."""
        return "one"

    @property
    def sees_whole_queries(self) -> bool:
        """Whether the loss is defined by all pairs of a query together."""
        return False

    @property
    def has_parameters(self) -> bool:
        """Whether the task has parameters of its own, which are trained with the model."""
        return False

    def candidates_bytes(self, candidates: int, dim: int) -> int:
        """Return the bytes that a step needs at least for all candidates, beside the model: where
        it wants them all, their embeddings, the gradient of these, and that of a table."""
        return 3 * FLOAT * candidates * dim if self.wants_all_candidates else 0

    @abstractmethod
    def build(self, corpus: Corpus) -> Task:
        """Return the task for this corpus. Raises: DataError: the corpus lacks what it needs."""


def _is_loss(name: str) -> str:
    """Raises: ValueError: no loss has this name."""
    loss_named(name)
    return name


class PointwiseSettings(TaskSettings):
    """Each observed pair reaches a score; `loss` is a name in `pointwise_losses.LOSSES`."""

    kind = "pointwise"
    needs_penalty = True
    loss: Annotated[str, AfterValidator(_is_loss)] = "squared"
    target: Literal["one", "value"] = "one"

    @property
    def pair_target(self) -> Literal["one", "value"]:
        return self.target

    def build(self, corpus: Corpus) -> Task:
        from evergram.tasks.pointwise import Pointwise

        loss = loss_named(self.loss)
        if self.target == "value" and corpus.has_values:
            values = (block.value for block in corpus.blocks())
            ends = [value.aminmax() for value in values if value is not None]
            least, most = float(min(e.min for e in ends)), float(max(e.max for e in ends))
            if not loss.least <= least <= most <= loss.most:
                raise DataError(
                    f"The {self.loss} loss needs values between {loss.least:g} and {loss.most:g}, "
                    f"and these range from {least} to {most}; set task.target = 'one' or "
                    "task.loss = 'squared'."
                )
        return Pointwise(self.loss)


class BPRSettings(TaskSettings):
    """Each observed pair scores above one that was not observed."""

    kind = "bpr"
    draws: ClassVar[Literal["examples", "queries", "whole_queries"]] = "queries"
    wants_negatives = True

    def build(self, corpus: Corpus) -> Task:
        from evergram.tasks.bpr import BPR

        return BPR()


class TemperedSettings(TaskSettings):
    """A task by whose `temperature` scores are divided."""

    learns_temperature: ClassVar[bool] = False
    temperature: Rate | Literal["learned"] = 1.0

    @model_validator(mode="after")
    def _learned_where_it_can_be(self) -> Self:
        if self.temperature == "learned" and not self.learns_temperature:
            raise ValueError(
                f"task.temperature is 'learned', which task.kind = {self.kind!r} cannot; give it a "
                "number, or set task.kind = 'softmax_all'"
            )
        return self

    @property
    def has_parameters(self) -> bool:
        return self.temperature == "learned"

    @property
    def tau(self) -> float:
        """τ; 1.0 where it is learned, as it is no part of the settings then."""
        return 1.0 if self.temperature == "learned" else self.temperature


class SoftmaxSettings(TemperedSettings):
    """The observed candidate against those of its batch; scores are divided by `temperature`."""

    kind = "softmax"

    def build(self, corpus: Corpus) -> Task:
        from evergram.tasks.softmax import Softmax

        return Softmax(len(corpus.candidates), self.tau)


class SecondOrderSettings(TemperedSettings):
    """The observed candidate against all. `centred`: take off the squared mean (False is RG²)."""

    kind = "second_order"
    wants_means = True
    centred: bool = True

    def build(self, corpus: Corpus) -> Task:
        from evergram.tasks.second_order import SecondOrderSoftmax

        return SecondOrderSoftmax(self.tau, self.centred)


class SphericalSettings(TemperedSettings):
    """The observed candidate against all, by a quadratic in place of the exponential."""

    kind = "spherical"
    wants_means = True
    form: Literal["taylor", "square"] = "taylor"

    def build(self, corpus: Corpus) -> Task:
        from evergram.tasks.spherical import Spherical

        return Spherical(self.tau, self.form)


class SoftmaxAllSettings(TemperedSettings):
    """The observed candidate against all, by the softmax itself: no sample and no expansion.

    A pair of a query with m pairs weighs m^-query_power, scaled to a mean of one over all pairs.
    A "learned" temperature is trained with the model, on unit rows.
    With `positive_temperature` the scores of a query's own pairs enter as a log-mean-exp. With
    `denominator` "unobserved" a query's own pairs are not in its partition function. The
    log-partition counts `push` times as much as the pairs' scores. No candidate takes more than
    `largest_share` of a query's softmax. `neighbour_share` of a pair's pull goes to so many
    `neighbours` of its candidate, which are the most like it by their queries. `products`: of
    queries and all candidates, summed in float32 either way.
    """

    kind = "softmax_all"
    draws: ClassVar[Literal["examples", "queries", "whole_queries"]] = "whole_queries"
    wants_all_candidates = True
    learns_temperature = True
    denominator: Literal["all", "unobserved"] = "all"
    query_power: Weight = 0.0
    positive_temperature: Rate | None = None
    push: Rate = 1.0
    largest_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    neighbour_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    neighbours: Positive = 10
    products: Literal["float32", "bfloat16"] = "float32"

    @model_validator(mode="after")
    def _neighbours_of_means(self) -> SoftmaxAllSettings:
        if self.neighbour_share and self.positive_temperature is not None:
            raise ValueError(
                f"task.neighbour_share is {self.neighbour_share:g}, and task.positive_temperature "
                "is for scores of a query's own pairs alone; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _limit_of_all(self) -> SoftmaxAllSettings:
        if self.largest_share is not None and self.denominator == "unobserved":
            raise ValueError(
                f"task.largest_share is {self.largest_share:g}, and it is of all candidates; leave "
                "it out, or set task.denominator = 'all'"
            )
        return self

    @property
    def sees_whole_queries(self) -> bool:
        return self.denominator == "unobserved" or self.positive_temperature is not None

    def candidates_bytes(self, candidates: int, dim: int) -> int:
        whole = super().candidates_bytes(candidates, dim)
        if not self.neighbour_share:
            return whole
        entries = candidates * min(self.neighbours, candidates - 1)
        # Sums over neighbours and their gradient; neighbours and their shares, there and back.
        return whole + 2 * FLOAT * candidates * dim + 2 * (INDEX + FLOAT) * entries

    def build(self, corpus: Corpus) -> Task:
        from evergram.tasks.softmax_all import SoftmaxAll, check_share, query_weights

        if self.largest_share is not None:
            check_share(self.largest_share, len(corpus.candidates))
        neighbours = None
        if self.neighbour_share:
            from evergram.tasks.candidate_neighbours import CandidateNeighbours

            pairs = corpus.column("query"), corpus.column("candidate")
            sizes = len(corpus.queries), len(corpus.candidates)
            neighbours = CandidateNeighbours.of(*pairs, *sizes, self.neighbours)
        return SoftmaxAll(
            None if self.temperature == "learned" else self.tau,
            positive_temperature=self.positive_temperature,
            excludes_observed=self.denominator == "unobserved",
            query_weight=query_weights(corpus.counts("query"), self.query_power),
            push=self.push,
            largest_share=self.largest_share,
            neighbours=neighbours,
            neighbour_share=self.neighbour_share,
            lower_products=self.products == "bfloat16",
        )


class ClusteredSoftmaxSettings(TemperedSettings):
    """The observed candidate against all, which so many `clusters` stand for.

    `cluster_rate`: α of the averages that clusters are, or "auto". `cluster_push`: see
    `ClusteredSoftmax`.
    """

    kind = "softmax_clustered"
    clusters: Positive = 512
    cluster_rate: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = 0.05
    cluster_push: Literal["streamed", "batch", "scores"] = "streamed"

    def build(self, corpus: Corpus) -> Task:
        from evergram.tasks.clustered_softmax import ClusteredSoftmax

        size = int((corpus.counts("candidate") > 0).sum())
        return ClusteredSoftmax(size, self.tau, self.clusters, self.cluster_rate, self.cluster_push)


TASKS: dict[str, type[TaskSettings]] = table_of(
    PointwiseSettings,
    BPRSettings,
    SoftmaxSettings,
    SecondOrderSettings,
    SphericalSettings,
    SoftmaxAllSettings,
    ClusteredSoftmaxSettings,
)
