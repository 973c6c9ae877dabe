"""The tables [split], [prior], [training] and [upgrade] of a recipe."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from evergram.compatibility.kinds import (
    TRANSFORMS,
    LinearSettings,
    TransformSettings,
    TruncateSettings,
)
from evergram.errors import DataError
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

    from evergram.data.corpus import Vocabulary

    # The ids of each side, and a function that returns the distinct observed pairs, int64 [2, n].
    Ids = Mapping[str, Vocabulary]
    Pairs = Callable[[], Tensor]


VERSIONS = [0.8, 0.9]


class SplitSettings(KindSettings):
    """The split into training, selection and test; see `evergram.data.split`."""

    @property
    def selects_by(self) -> Literal["strict", "paper"]:
        """Whether a held-out query has either selection or test pairs ("strict"), or all held-out
        pairs are used for both ("paper"), as in [BC]."""
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
    """Holds out `share` of the pairs."""

    kind: Literal["random"] = "random"
    share: Share = 0.1


class GivenSplit(SplitSettings):
    """Test pairs from a file; `share` of the training pairs select epochs."""

    kind: Annotated[Literal["given"], Needs(Trait.TEST_FILE, values=("given",))] = "given"
    share: Share = 0.1


class TimeSplit(SplitSettings):
    """Version n trains on the earliest versions[n] of all interactions; or, with `last`, on all but
    the last "5 %" or "7 days"."""

    kind: Literal["time"] = "time"
    versions: Annotated[list[Share], Field(min_length=1)] = Field(default=VERSIONS)
    last: str | None = None

    @model_validator(mode="after")
    def _ascending(self) -> TimeSplit:
        if sorted(set(self.versions)) != self.versions:
            raise ValueError("split.versions must be one or more ascending shares")
        if self.last is not None:
            # Imported here because it imports torch.
            from evergram.data.rolling_window import RollingWindow

            RollingWindow.parse(self.last)
            # Compare values: a stored recipe has every key.
            if self.versions != VERSIONS:
                raise ValueError(
                    "split.last and split.versions exclude each other: either every version trains "
                    "on all but the last part, or each has its own share"
                )
        return self

    @property
    def ends(self) -> list[float]:
        """The boundaries between versions, as shares of the interactions. The last interval is as
        long as the previous one, or ends with the data."""
        if len(self.versions) == 1:
            return [*self.versions, 1.0]
        return [*self.versions, min(1.0, 2 * self.versions[-1] - self.versions[-2])]


SPLITS: Kinds[SplitSettings] = Kinds("split", (RandomSplit, TimeSplit, GivenSplit))


class PriorSettings(KindSettings):
    """Settings of a prior π_ab = ⟨q_a, r_b⟩, [G2] App. B; `build` returns its factors."""

    needs = (Trait.PENALTY,)

    @abstractmethod
    def build(self, ids: Ids, pairs: Pairs, seed: int) -> dict[str, Tensor]:
        """Return the factors, float32 [N, K] of each side; K = 0 for the zero prior. Raises:
        DataError: a file cannot be used."""


class ZeroSettings(PriorSettings):
    """Every score is pulled to 0."""

    kind: Literal["zero"] = "zero"

    def build(self, ids: Ids, pairs: Pairs, seed: int) -> dict[str, Tensor]:
        import torch

        return {side: torch.zeros(len(keys), 0) for side, keys in ids.items()}


class ConstantSettings(PriorSettings):
    """Every score is pulled to `value`."""

    kind: Literal["constant"] = "constant"
    value: Finite = 0.0

    def build(self, ids: Ids, pairs: Pairs, seed: int) -> dict[str, Tensor]:
        import torch

        query = torch.full((len(ids["query"]), 1), self.value)
        return {"query": query, "candidate": torch.ones(len(ids["candidate"]), 1)}


class FilesSettings(PriorSettings):
    """Inner products of vectors from two files, with columns `id` and `vector`."""

    kind: Literal["files"] = "files"
    query: str
    candidate: str

    def build(self, ids: Ids, pairs: Pairs, seed: int) -> dict[str, Tensor]:
        from evergram.training.factors import read_vectors

        vectors = {side: read_vectors(Path(getattr(self, side)), ids[side]) for side in ids}
        widths = [rows.shape[1] for rows in vectors.values()]
        if widths[0] != widths[1]:
            raise DataError(
                f"prior.query has vectors of {widths[0]} dims and prior.candidate of {widths[1]}; "
                "both must have the same number, because the prior is their inner product."
            )
        return vectors


class SVDSettings(PriorSettings):
    """The truncated SVD of the matrix of observed pairs, with at most `rank` dimensions."""

    kind: Literal["svd"] = "svd"
    rank: ClassVar[int] = 32

    def build(self, ids: Ids, pairs: Pairs, seed: int) -> dict[str, Tensor]:
        import torch

        from evergram.training.factors import svd_factors

        sizes, observed = (len(ids["query"]), len(ids["candidate"])), pairs()
        ones = torch.ones(observed.shape[1])
        matrix = torch.sparse_coo_tensor(observed, ones, sizes).coalesce()
        return svd_factors(matrix, max(1, min(self.rank, min(sizes) - 1)), seed)


PRIORS: Kinds[PriorSettings] = Kinds(
    "prior", (ZeroSettings, ConstantSettings, FilesSettings, SVDSettings)
)


def _is_metric(value: str) -> str:
    if not re.fullmatch(r"(recall|ndcg|map)@[1-9]\d{0,5}", value):
        raise ValueError(
            "it must be recall@K, ndcg@K or map@K with K from 1 to 999999, such as 'recall@20'"
        )
    return value


Metric = Annotated[str, AfterValidator(_is_metric)]
# Where tables of ids and features are stored during training.
Tables = Literal["auto", "memory", "mapped"]


FEATURE_RATE = 0.005
# Requirements of tables in files.
MAPPED = Needs(
    Trait.MAPPABLE,
    Trait.SOME_CANDIDATES,
    Trait.SOME_ROWS,
    Trait.CPU,
    Trait.ONE_PROCESS,
    values=("mapped",),
)


class TrainingSettings(Settings):
    """The keys that all optimizers have."""

    optimizer: str
    # "mapped": in files; "auto": in files if they do not fit into memory.
    tables: Annotated[Tables, MAPPED, Needs(Trait.MAPPABLE)] = "auto"
    # Maximum; 0 publishes the initial model, see `model.start`.
    epochs: Annotated[
        int,
        Field(ge=0),
        Needs(Trait.MADE_START, Trait.NEW_MODEL, Trait.FITTED_AFTERWARDS, values=(0,)),
    ] = 100
    # Stop after this many consecutive evaluations without improvement (0: never).
    patience: Annotated[int, Field(ge=0)] = 10
    # Train again on all but the test pairs, for as many steps as the best epoch had; "auto" does if
    # split.kind is "given", because published results are of such models.
    refit: Annotated[
        bool | Literal["auto"], Needs(Trait.SEPARATE_SELECTION, free=("auto", False))
    ] = "auto"
    # Epochs between evaluations, and the metric that selects the best epoch.
    evaluate_every: Positive = 1
    metric: Metric = "recall@20"
    # Maximum work of evaluations as a share of training's, in multiply-adds: if all queries take
    # more, a sample is ranked. "auto" is 0.25 for evaluations of more than some seconds; "full"
    # always ranks all queries. For the final metrics it is a share of all training.
    evaluate_share: Rate | Literal["auto", "full"] = "auto"
    # Training ends after the epoch that reaches this many seconds, without evaluations.
    budget: Rate | None = None

    # Whether an epoch is a sweep over all rows instead of steps over batches of pairs.
    sweeps: ClassVar[bool] = False

    @property
    def traits(self) -> frozenset[Trait]:
        kinds = {Trait.STEPS: not self.sweeps, Trait.SOME_ROWS: self.sweeps}
        return traits_where(kinds | {Trait.EPOCHS: self.epochs > 0})

    @property
    def fills_batches(self) -> bool:
        """Whether an epoch drops an incomplete last batch, so that all batches have one size."""
        return True

    def swept(self, **changes: Any) -> SweepTraining:
        """Return these settings for alternating least squares, with `changes`."""
        keys = TrainingSettings.model_fields.keys() - {"optimizer"}
        return SweepTraining(**{key: getattr(self, key) for key in keys} | changes)


class StepSettings(TrainingSettings):
    """Training by steps over batches of pairs.

    `table_rate` is the learning rate of id tables, `layer_rate` that of everything but tables.
    With "sgd", both are rates of plain SGD, as in [G2] Algorithms 1 and 2.
    """

    # Pairs per step; "auto" makes about 32 steps per epoch on small data.
    batch_size: Positive | Literal["auto"] = "auto"
    # "auto" is 0.1 (Adam: 0.01), or chosen by pilots.
    table_rate: Annotated[Rate | Literal["auto"], Needs(Trait.ID_TABLES)] = "auto"
    layer_rate: Annotated[Rate, Needs(Trait.LAYERS)] = 2e-4
    # Factor of the rates from each epoch to the next.
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    # ρ of the preconditioner, an inverse Gramian that multiplies gradients; 0 for none.
    precondition: Annotated[Weight, Needs(Trait.GRAMIANS)] = 0.1
    # Of matrix products in layers, or of queries with all candidates; sums are float32, like
    # parameters, Gramians and evaluations.
    precision: Annotated[Literal["float32", "bfloat16"], Needs(Trait.BATCH_PRODUCTS)] = "float32"

    @property
    def feature_table_rate(self) -> float:
        """The learning rate of feature tables; lower, because many entities share a row."""
        return FEATURE_RATE


class AdaptiveTraining(StepSettings):
    """Row-wise Adagrad for tables and Adam for layers; or plain SGD for both.

    `optimizer` "auto" is "als" for a first version whose λ or l2 pilots chose with the solver, else
    "adaptive".
    """

    optimizer: Literal["auto", "adaptive", "sgd"] = "auto"
    rescale_rows: ClassVar[bool] = False

    @property
    def may_sweep(self) -> bool:
        """Whether all settings are compatible with alternating least squares."""
        fields = type(self).model_fields
        of_steps = ("batch_size", "table_rate", "decay", "precondition")
        return self.optimizer == "auto" and all(
            getattr(self, name) == fields[name].default for name in of_steps
        )

    @property
    def traits(self) -> frozenset[Trait]:
        return super().traits | {Trait.SOME_ROWS}

    def decided(self) -> Self:
        """Return the settings with "auto" replaced by an optimizer."""
        if self.optimizer != "auto":
            return self
        return self.model_copy(update={"optimizer": "adaptive"})


class AdamTraining(StepSettings):
    """Adam for everything; every row of a table moves in every step.

    `rescale_rows`: set the table rows of normalised embeddings to norm 1 before each epoch;
    otherwise rows grow and learn ever more slowly.
    """

    optimizer: Literal["adam"] = "adam"
    rescale_rows: Annotated[bool, Needs(Trait.FREE_VECTORS, Trait.UNIT_ROWS)] = False
    may_sweep: ClassVar[bool] = False

    def decided(self) -> Self:
        return self


class SweepTraining(TrainingSettings):
    """Alternating least squares: an epoch is a sweep over all rows, without batches or rates."""

    optimizer: Annotated[
        Literal["als"],
        Needs(
            Trait.FREE_VECTORS,
            Trait.FREE_NORMS,
            Trait.SQUARED_LOSS,
            Trait.NO_JOINT_TRANSFORM,
            Trait.ONE_PROCESS,
            values=("als",),
        ),
    ] = "als"
    sweeps = True
    # Constants that `Step` needs.
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


Fit = Literal["joint", "posthoc", "none"]
Start = Literal["fresh", "previous", "frozen"]


@dataclass(frozen=True)
class Method:
    """An upgrade method, [BC] §4, Table 1."""

    fit: Fit  # whether the transform is trained with the model, afterwards, or not at all
    # The defaults of these keys of [upgrade]
    start: Start = "fresh"
    transform: Literal["linear", "truncate"] = "linear"
    # Whether the alignment loss covers all past versions or only the previous one.
    steps: Literal["multi", "single"] = "multi"
    # How the transform is fitted: with Adam, or in closed form. Joint methods compute the closed
    # form after training and use it if its error is smaller.
    solver: Literal["gradient", "closed"] = "gradient"


_ALONE = Method("none", transform="truncate")

METHODS: dict[str, Method] = {
    # Old consumers keep reading the old model; the new one is trained like Non-BC.
    "keep-all": _ALONE,
    "fix-m0": Method("none", "frozen", "truncate"),
    "finetune-m0": Method("none", "previous", "truncate"),
    "non-bc": _ALONE,
    "post-lin-sloss": Method("posthoc", steps="single"),
    "post-lin-mloss": Method("posthoc"),
    "joint-notrans": Method("joint", transform="truncate", steps="single"),
    "joint-lin-sloss": Method("joint", steps="single"),
    "bc-aligner": Method("joint"),
    # Ours: a post-hoc closed form; and the default, BC-Aligner with a closed form at the end.
    "post-closed": Method("posthoc", solver="closed"),
    "evergram": Method("joint", solver="closed"),
}


# The objects over which the joint alignment loss is averaged.
AlignedObjects = Literal["all", "paper-code", "batch"]


class UpgradeSettings(Settings):
    """The keys of all methods. [BC] §3, Table 1."""

    method: str
    transform: Annotated[TransformSettings, TRANSFORMS] = LinearSettings()
    # The model is new, continues from the previous version, or is the previous version.
    start: Start = "fresh"
    # Share of known objects excluded from alignment, on which its error is measured.
    held_out: Share = 0.05
    # Also train the same model without alignment, to report the cost of compatibility.
    alone: bool = True

    @property
    def fit(self) -> Fit:
        """Whether the transform is trained with the model, afterwards, or not at all."""
        return METHODS[self.method].fit

    @property
    def steps(self) -> Literal["multi", "single"]:
        """Whether the loss covers all past versions (BC-Aligner) or only the previous one."""
        return METHODS[self.method].steps

    @property
    def solver(self) -> Literal["gradient", "closed"]:
        """Whether the transform is fitted with Adam or, if it has one, in closed form."""
        return METHODS[self.method].solver if self.transform.has_closed_form else "gradient"

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where(
            {
                Trait.NEW_MODEL: self.start != "previous",
                Trait.FITTED_AFTERWARDS: self.fit != "joint",
                Trait.NOTHING_TO_FIT: not self.transform.is_learned,
                Trait.CLOSED_FORM: self.transform.has_closed_form,
            }
        )


Unfitted = Literal["non-bc", "finetune-m0", "fix-m0", "keep-all"]


class UnfittedUpgrade(UpgradeSettings):
    """No transform is fitted, so learned transforms are not allowed."""

    method: Annotated[Unfitted, Needs(Trait.NOTHING_TO_FIT, values=get_args(Unfitted))] = "non-bc"
    transform: Annotated[TransformSettings, TRANSFORMS] = TruncateSettings()


@dataclass(frozen=True)
class TransformTraining:
    """How Adam trains a transform. Experiments of [BC] change it, see `reproduction/recipe.py`."""

    rate: float = 3e-3  # Adam's learning rate
    # Over which the loss is averaged: "all" objects, as in [BC]; "paper-code": the batch's objects
    # and negatives, as in its authors' code, where W also starts like a PyTorch layer, uniform in
    # ±1/√D_k; "batch": the objects of the batch's pairs.
    objects: AlignedObjects = "all"
    rows: int = 512  # maximum number of objects per side and step, for "all" and "batch"
    epochs: int = 100  # of a posthoc transform, passes over the objects or pairs
    select_after: int = 0  # only later epochs can be the best (posthoc: have the smallest error)
    # Function that trains a posthoc transform instead of passes over all objects; it gets the
    # `JointAlignment`, z_k of each side, the recipe, the corpus and the version.
    fit: Callable[..., object] | None = None


class GradientUpgrade(UpgradeSettings):
    """Methods that train the transform with Adam."""

    @property
    def transform_training(self) -> TransformTraining:
        """How Adam trains the transform."""
        return TransformTraining()


class JointUpgrade(GradientUpgrade):
    """The transform is trained together with the model; `weight` is λ of the alignment loss."""

    method: Literal["evergram", "bc-aligner", "joint-lin-sloss", "joint-notrans"] = "evergram"
    weight: Weight = 16.0


class PosthocUpgrade(GradientUpgrade):
    """The transform is trained after the model, by passes over the objects."""

    method: Literal["post-lin-mloss", "post-lin-sloss"] = "post-lin-mloss"


class SolvedUpgrade(UpgradeSettings):
    """The transform is fitted in closed form after the model."""

    method: Annotated[Literal["post-closed"], Needs(Trait.CLOSED_FORM, values=("post-closed",))] = (
        "post-closed"
    )


class Upgrades(Kinds[UpgradeSettings]):
    """The upgrade methods; the method decides the defaults of `transform` and `start`."""

    def completed(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values with the method's defaults, and the transform's keys in a table."""
        method = METHODS.get(str(values.get("method", self.default)))
        if method is not None:
            values = {"transform": method.transform, "start": method.start, **values}
        kind = values.get("transform")
        if isinstance(kind, str) and kind in TRANSFORMS:
            fields = TRANSFORMS[kind].model_fields.keys() - {"kind"}
            nested = {key: values[key] for key in fields & values.keys()}
            values = {k: v for k, v in values.items() if k not in nested}
            values["transform"] = {"kind": kind, **nested}
        return values

    def without_defaults(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values without the defaults of their method, so that an override of the method
        brings its own."""
        method = METHODS.get(str(values.get("method", self.default)))
        changed = dict(values)
        for key in ("transform", "start"):
            value = changed.get(key)
            kind = value.get("kind") if isinstance(value, Mapping) else value
            if method is not None and kind == getattr(method, key):
                del changed[key]
        return changed

    def unknown(self, key: str, settings: type[UpgradeSettings], name: str) -> str:
        if any(key in each.model_fields for each in TRANSFORMS.values()):
            return (
                f"upgrade.{key} is only used with upgrade.transform = "
                f"{' or '.join(repr(k) for k, t in TRANSFORMS.items() if key in t.model_fields)}; "
                "leave it out, or change upgrade.transform"
            )
        return super().unknown(key, settings, name)


UPGRADES: Upgrades = Upgrades(
    "upgrade", (JointUpgrade, SolvedUpgrade, PosthocUpgrade, UnfittedUpgrade), chooser="method"
)
