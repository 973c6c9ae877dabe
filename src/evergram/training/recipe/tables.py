"""The tables [split], [prior] and [training]."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from evergram.errors import DataError, RecipeError
from evergram.kinds import (
    Finite,
    Kinds,
    KindSettings,
    Needs,
    Positive,
    Rate,
    Settings,
    Share,
    Trait,
    Weight,
    traits_where,
)

if TYPE_CHECKING:
    from torch import Tensor

    from evergram.data.corpus import Corpus


# Embeddings of the version before, [N, D] of each side; None of version 0.
Past = Mapping[str, "Tensor"] | None
VERSIONS = [0.8, 0.9]


class SplitSettings(KindSettings):
    """The split into training, selection and test; see `evergram.data.split`."""

    @property
    def selects_by(self) -> Literal["strict", "paper"]:
        """Whether queries select or test ("strict"), or all do both, as in [BC]."""
        return "strict"

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where(
            {
                Trait.GIVEN_SPLIT: self.kind == "given",
                Trait.SEPARATE_SELECTION: self.selects_by == "strict",
            }
        )


class RandomSplit(SplitSettings):
    """`share` of the pairs are held out."""

    kind: Literal["random"] = "random"
    share: Share = 0.1


class GivenSplit(SplitSettings):
    """The test pairs are in a file; `share` of the training pairs select epochs."""

    kind: Annotated[Literal["given"], Needs(Trait.TEST_FILE, values=("given",))] = "given"
    share: Share = 0.1


class TimeSplit(SplitSettings):
    """Version n has seen versions[n] of all interactions, in order of time; or, with `last`, all
    but the last "5 %", or "7 days"."""

    kind: Literal["time"] = "time"
    versions: Annotated[list[Share], Field(min_length=1)] = Field(default=VERSIONS)
    last: str | None = None

    @model_validator(mode="after")
    def _ascending(self) -> TimeSplit:
        if sorted(set(self.versions)) != self.versions:
            raise ValueError("split.versions must be one or more ascending shares")
        if self.last is not None:
            # It imports torch, which few recipes need to be checked.
            from evergram.data.rolling_window import RollingWindow

            RollingWindow.parse(self.last)
            # By value, as the recipe that a lineage stores has every key.
            if self.versions != VERSIONS:
                raise ValueError(
                    "split.last and split.versions exclude each other: either "
                    "every version sees all but the last part, or each has a share of its own"
                )
        return self

    @property
    def ends(self) -> list[float]:
        """The start of each interval of time, and the end of the last one: as far again as the one
        before it, or the end of the data."""
        if len(self.versions) == 1:
            return [*self.versions, 1.0]
        return [*self.versions, min(1.0, 2 * self.versions[-1] - self.versions[-2])]


SPLITS: Kinds[SplitSettings] = Kinds("split", (RandomSplit, TimeSplit, GivenSplit))


class PriorSettings(KindSettings):
    """Settings of a prior π_ab = ⟨q_a, r_b⟩, and how it is made. [G2] App. B."""

    needs = (Trait.PENALTY,)

    @abstractmethod
    def build(self, corpus: Corpus, past: Past, seed: int) -> dict[str, Tensor]:
        """Return Q and R, float32 [N, K] of each side; K = 0 is the zero prior.

        Raises: RecipeError: the prior needs a version before. DataError: a file cannot be used.
        """


class ZeroSettings(PriorSettings):
    """Every score is pulled to 0."""

    kind: Literal["zero"] = "zero"

    def build(self, corpus: Corpus, past: Past, seed: int) -> dict[str, Tensor]:
        import torch

        sizes = {"query": len(corpus.queries), "candidate": len(corpus.candidates)}
        return {side: torch.zeros(size, 0) for side, size in sizes.items()}


class ConstantSettings(PriorSettings):
    """Every score is pulled to `value`."""

    kind: Literal["constant"] = "constant"
    value: Finite = 0.0

    def build(self, corpus: Corpus, past: Past, seed: int) -> dict[str, Tensor]:
        import torch

        query = torch.full((len(corpus.queries), 1), self.value)
        return {"query": query, "candidate": torch.ones(len(corpus.candidates), 1)}


class FilesSettings(PriorSettings):
    """Inner products of given vectors: files with columns `id` and `vector`, of both sides."""

    kind: Literal["files"] = "files"
    query: str
    candidate: str

    def build(self, corpus: Corpus, past: Past, seed: int) -> dict[str, Tensor]:
        from evergram.training.factors import read_vectors

        vectors = {
            "query": read_vectors(Path(self.query), corpus.queries.vocabulary),
            "candidate": read_vectors(Path(self.candidate), corpus.candidates.vocabulary),
        }
        widths = [rows.shape[1] for rows in vectors.values()]
        if widths[0] != widths[1]:
            raise DataError(
                f"prior.query has vectors of {widths[0]} dims and prior.candidate of {widths[1]}; "
                "their inner products are the prior, so they must agree."
            )
        return vectors


class SVDSettings(PriorSettings):
    """The truncated decomposition of the observed matrix, of rank `rank` at most."""

    kind: Literal["svd"] = "svd"
    rank: ClassVar[int] = 32

    def build(self, corpus: Corpus, past: Past, seed: int) -> dict[str, Tensor]:
        import torch

        from evergram.training.factors import svd_factors

        sizes = len(corpus.queries), len(corpus.candidates)
        pairs = torch.stack([corpus.column("query"), corpus.column("candidate")])
        pairs = torch.unique(pairs, dim=1)
        observed = torch.sparse_coo_tensor(pairs, torch.ones(pairs.shape[1]), sizes).coalesce()
        return svd_factors(observed, max(1, min(self.rank, min(sizes) - 1)), seed)


class VersionSettings(PriorSettings):
    """The scores of the version before, which are distilled into the new one."""

    kind: Literal["version"] = "version"

    def build(self, corpus: Corpus, past: Past, seed: int) -> dict[str, Tensor]:
        if past is None:
            raise RecipeError(
                "prior.kind = 'version' distils the scores of the version before, and version 0 "
                "has none; use it with upgrade."
            )
        return {side: vectors.float() for side, vectors in past.items()}


PRIORS: Kinds[PriorSettings] = Kinds(
    "prior", (ZeroSettings, ConstantSettings, FilesSettings, SVDSettings, VersionSettings)
)


def _is_metric(value: str) -> str:
    if not re.fullmatch(r"(recall|ndcg|map)@[1-9]\d{0,5}", value):
        raise ValueError(
            "it must be recall@K, ndcg@K or map@K with K from 1 to 999999, such as 'recall@20'"
        )
    return value


Metric = Annotated[str, AfterValidator(_is_metric)]
# Where tables of ids and features are while they are trained.
Tables = Literal["auto", "memory", "mapped"]


FEATURE_RATE = 0.005
# What tables in files need.
MAPPED = Needs(
    *(Trait.MAPPABLE, Trait.SOME_CANDIDATES, Trait.SOME_ROWS, Trait.CPU, Trait.ONE_PROCESS),
    values=("mapped",),
)


class TrainingSettings(Settings):
    """The keys of every loop, whatever its optimizer."""

    optimizer: str
    tables: Tables = "auto"
    # At most; 0 publishes the start as it is, see `model.start`.
    epochs: Annotated[
        int,
        Field(ge=0),
        Needs(Trait.MADE_START, Trait.NEW_MODEL, Trait.FITTED_AFTERWARDS, values=(0,)),
    ] = 100
    # Training ends after this many evaluations in a row without a better one (0: never).
    patience: Annotated[int, Field(ge=0)] = 10
    # At last train on all that is not test, for as many steps as selection found best; "auto" does
    # where split.kind is "given", for published figures are of such models.
    refit: Annotated[
        bool | Literal["auto"], Needs(Trait.SEPARATE_SELECTION, free=("auto", False))
    ] = "auto"
    # Whether pilots search longer: more settings, each trained to its end by the recipe's steps.
    thorough: bool = False
    # Epochs between evaluations, and the metric that keeps the best.
    evaluate_every: Positive = 1
    metric: Metric = "recall@20"
    # The share of training's work, in multiply-adds, that evaluations may take: they rank a sample
    # of queries where all would take more. "auto" is 0.25 where an evaluation takes more than
    # seconds; "full" ranks all queries, whatever it takes. The published metrics have the same
    # share of all of training.
    evaluate_share: Rate | Literal["auto", "full"] = "auto"
    # Seconds of training (evaluation not counted) after which the last epoch ends.
    budget: Rate | None = None

    # Whether an epoch is one sweep over all rows, in place of steps over batches of pairs.
    sweeps: ClassVar[bool] = False

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where(
            {
                Trait.STEPS: not self.sweeps,
                Trait.EPOCHS: self.epochs > 0,
            }
        )

    @property
    def fills_batches(self) -> bool:
        """Whether an epoch leaves out the pairs that do not fill a batch, so that all batches weigh
        the same."""
        return True

    def swept(self, **changes: Any) -> SweepTraining:
        """Return the settings by which the solver trains instead."""
        keys = TrainingSettings.model_fields.keys() - {"optimizer", "tables"}
        return SweepTraining(**{key: getattr(self, key) for key in keys} | changes)


class StepSettings(TrainingSettings):
    """The loop that takes steps over batches of pairs.

    `table_rate` is Adagrad's on tables of ids, `layer_rate` Adam's on what is not a table. With
    "sgd" they are the rates of plain SGD, [G2]'s Algorithms 1 and 2.
    """

    # Pairs a step; "auto" makes about 32 steps an epoch of small data.
    batch_size: Positive | Literal["auto"] = "auto"
    # "auto" is 0.1 (0.01 of Adam), or what pilots choose.
    table_rate: Annotated[Rate | Literal["auto"], Needs(Trait.ID_TABLES)] = "auto"
    layer_rate: Annotated[Rate, Needs(Trait.LAYERS)] = 2e-4
    # Factor of the rates from each epoch to the next.
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    # ρ of the inverse Gramians that gradients are multiplied by; 0 leaves them as they are.
    precondition: Annotated[Weight, Needs(Trait.GRAMIANS)] = 0.1
    # Of products in a step, of layers or of queries and all candidates, summed in float32;
    # parameters, Gramians and evaluations are float32.
    precision: Annotated[Literal["float32", "bfloat16"], Needs(Trait.BATCH_PRODUCTS)] = "float32"
    # "mapped" is in files, "auto" is in files where memory cannot hold them.
    tables: Annotated[Tables, MAPPED, Needs(Trait.MAPPABLE)] = "auto"

    @property
    def feature_table_rate(self) -> float:
        """Adagrad's rate on tables of features, whose rows many entities share."""
        return FEATURE_RATE


class AdaptiveTraining(StepSettings):
    """Row-wise Adagrad for tables and Adam for layers; or plain SGD for both.

    `optimizer` "auto" is "als" where pilots chose a first version's λ or l2 by it, else "adaptive".
    """

    optimizer: Literal["auto", "adaptive", "sgd"] = "auto"
    rescale_rows: ClassVar[bool] = False

    @property
    def may_sweep(self) -> bool:
        """Whether nothing here says that training takes steps."""
        fields = type(self).model_fields
        of_steps = ("batch_size", "table_rate", "decay", "precondition")
        return self.optimizer == "auto" and all(
            getattr(self, name) == fields[name].default for name in of_steps
        )

    @property
    def traits(self) -> frozenset[Trait]:
        return super().traits | {Trait.SOME_ROWS}

    def decided(self) -> Self:
        """Return the settings with an optimizer in the place of "auto"."""
        if self.optimizer != "auto":
            return self
        return self.model_copy(update={"optimizer": "adaptive"})


class AdamTraining(StepSettings):
    """Adam for all, tables included, every row of which moves in every step.

    `rescale_rows`: of unit rows, set those of tables to norm 1 before each epoch; rows that have
    grown would learn ever more slowly.
    """

    optimizer: Literal["adam"] = "adam"
    rescale_rows: Annotated[bool, Needs(Trait.FREE_VECTORS, Trait.UNIT_ROWS)] = False
    may_sweep: ClassVar[bool] = False

    def decided(self) -> Self:
        return self


class SweepTraining(TrainingSettings):
    """The solver: an epoch is one sweep over all rows, which has neither batches nor rates."""

    optimizer: Annotated[
        Literal["als"],
        Needs(
            *(Trait.FREE_VECTORS, Trait.FREE_NORMS, Trait.SQUARED_LOSS),
            *(Trait.NO_JOINT_TRANSFORM, Trait.ONE_PROCESS),
            values=("als",),
        ),
    ] = "als"
    tables: Literal["auto", "memory"] = "auto"
    sweeps = True
    # What a step would have.
    decay: ClassVar[float] = 1.0
    precondition: ClassVar[float] = 0.0
    precision: ClassVar[Literal["float32"]] = "float32"
    rescale_rows: ClassVar[bool] = False
    may_sweep: ClassVar[bool] = True

    def decided(self) -> Self:
        return self


Training = AdaptiveTraining | AdamTraining | SweepTraining
TRAININGS: Kinds[TrainingSettings] = Kinds(
    "training", (AdaptiveTraining, AdamTraining, SweepTraining), chooser="optimizer"
)
