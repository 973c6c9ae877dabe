"""The tables [split], [prior] and [training]."""

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

    # The ids of each side, and a function that makes the distinct observed pairs, int64 [2, n].
    Ids = Mapping[str, Vocabulary]
    Pairs = Callable[[], Tensor]


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
    def build(self, ids: Ids, pairs: Pairs, seed: int) -> dict[str, Tensor]:
        """Return Q and R, float32 [N, K] of each side; K = 0 is the zero prior. Raises: DataError:
        a file cannot be used."""


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
    """Inner products of given vectors: files with columns `id` and `vector`, of both sides."""

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
                "their inner products are the prior, so they must agree."
            )
        return vectors


class SVDSettings(PriorSettings):
    """The truncated decomposition of the observed matrix, of rank `rank` at most."""

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
        return traits_where({Trait.STEPS: not self.sweeps, Trait.EPOCHS: self.epochs > 0})

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


Fit = Literal["joint", "posthoc", "none"]
Start = Literal["fresh", "previous", "frozen"]


@dataclass(frozen=True)
class Method:
    """[BC] §4, Table 1.

    Args:
        fit: the transform is trained together with the model, afterwards, or not at all.
        start, transform: the defaults of these keys of [upgrade].
        steps: the alignment loss counts errors at all past versions or at the one before.
        solver: the transform is trained by Adam, or solved for in closed form; of joint methods
            afterwards, where the closed form has the smaller error.
    """

    fit: Fit
    start: Start = "fresh"
    transform: Literal["linear", "truncate"] = "linear"
    steps: Literal["multi", "single"] = "multi"
    solver: Literal["gradient", "closed"] = "gradient"


_ALONE = Method("none", transform="truncate")

METHODS: dict[str, Method] = {
    # Consumers of a past version keep reading that model; it is trained like Non-BC.
    "keep-all": _ALONE,
    "fix-m0": Method("none", "frozen", "truncate"),
    "finetune-m0": Method("none", "previous", "truncate"),
    "non-bc": _ALONE,
    "post-lin-sloss": Method("posthoc", steps="single"),
    "post-lin-mloss": Method("posthoc"),
    "joint-notrans": Method("joint", transform="truncate", steps="single"),
    "joint-lin-sloss": Method("joint", steps="single"),
    "bc-aligner": Method("joint"),
    # Ours: a post-hoc transform in closed form, and BC-Aligner with a closed form at the end, which
    # is the default.
    "post-closed": Method("posthoc", solver="closed"),
    "evergram": Method("joint", solver="closed"),
}


# Which objects the mean of the joint alignment loss is over.
AlignedObjects = Literal["all", "paper-code", "batch"]


class UpgradeSettings(Settings):
    """The keys of every method. [BC] §3, Table 1."""

    method: str
    transform: Annotated[TransformSettings, TRANSFORMS] = LinearSettings()
    # The model is new, goes on from the version before, or is the version before.
    start: Start = "fresh"
    # Share of known objects that alignment never sees; its error is measured on them.
    held_out: Share = 0.05
    # Also train the same model without alignment, to say what compatibility cost.
    alone: bool = True

    @property
    def fit(self) -> Fit:
        """Whether the transform is trained with the model, afterwards, or not at all."""
        return METHODS[self.method].fit

    @property
    def steps(self) -> Literal["multi", "single"]:
        """Whether errors count at all past versions (BC-Aligner) or only at the one before."""
        return METHODS[self.method].steps

    @property
    def solver(self) -> Literal["gradient", "closed"]:
        """Whether the transform is Adam's, or in the end the closed form if there is one."""
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
    """Nothing is fitted: a transform that is learned would stay as it was drawn."""

    method: Annotated[Unfitted, Needs(Trait.NOTHING_TO_FIT, values=get_args(Unfitted))] = "non-bc"
    transform: Annotated[TransformSettings, TRANSFORMS] = TruncateSettings()


@dataclass(frozen=True)
class TransformTraining:
    """How Adam trains a transform. The experiments of [BC] change it, see `reproduction/recipe.py`.

    Args:
        rate: Adam's learning rate.
        objects: what the loss is a mean over: "all" objects, as [BC] has it; "paper-code": a
            batch's, with negatives, as in its authors' code, where W also starts as PyTorch's
            layers do, uniform in ±1/√D_k; "batch": a batch's pairs.
        rows: of each side, the most that "all" draws for a step, or that "batch" takes.
        epochs: passes over the objects, or over the pairs, of a transform that is trained after the
            model.
        select_after: the best epoch (posthoc: the transform with the smallest error) is looked for
            after so many.
        fit: trains a posthoc transform in the place of passes over all objects; it is called with
            the `JointAlignment`, z_k of each side, the recipe, the corpus and the version.
    """

    rate: float = 3e-3
    objects: AlignedObjects = "all"
    rows: int = 512
    epochs: int = 100
    select_after: int = 0
    fit: Callable[..., object] | None = None


class GradientUpgrade(UpgradeSettings):
    """The keys of transforms that are trained by Adam."""

    @property
    def transform_training(self) -> TransformTraining:
        """How Adam trains the transform."""
        return TransformTraining()


class JointUpgrade(GradientUpgrade):
    """The transform is trained together with the model, λ = `weight`."""

    method: Literal["evergram", "bc-aligner", "joint-lin-sloss", "joint-notrans"] = "evergram"
    weight: Weight = 16.0


class PosthocUpgrade(GradientUpgrade):
    """The transform is trained after the model, by passes over the objects."""

    method: Literal["post-lin-mloss", "post-lin-sloss"] = "post-lin-mloss"


class SolvedUpgrade(UpgradeSettings):
    """The transform is solved for after the model was trained."""

    method: Annotated[Literal["post-closed"], Needs(Trait.CLOSED_FORM, values=("post-closed",))] = (
        "post-closed"
    )


class Upgrades(Kinds[UpgradeSettings]):
    """The methods; `transform` and `start` are the method's where they are not written."""

    def completed(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values with their method's defaults, and the keys of a transform in its own
        table."""
        method = METHODS.get(str(values.get("method", self.default)))
        if method is not None:
            values = {"transform": method.transform, "start": method.start, **values}
        kind = values.get("transform")
        if isinstance(kind, str) and kind in TRANSFORMS:
            fields = TRANSFORMS[kind].model_fields.keys() - {"kind"}
            own = {key: values[key] for key in fields & values.keys()}
            values = {k: v for k, v in values.items() if k not in own}
            values["transform"] = {"kind": kind, **own}
        return values

    def without_defaults(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values without the keys that are as their method has them, so that another
        method may have its own."""
        method = METHODS.get(str(values.get("method", self.default)))
        kept = dict(values)
        for key in ("transform", "start"):
            value = kept.get(key)
            kind = value.get("kind") if isinstance(value, Mapping) else value
            if method is not None and kind == getattr(method, key):
                del kept[key]
        return kept

    def unknown(self, key: str, settings: type[UpgradeSettings], name: str) -> str:
        if any(key in each.model_fields for each in TRANSFORMS.values()):
            return (
                f"upgrade.{key} is used with upgrade.transform = "
                f"{' or '.join(repr(k) for k, t in TRANSFORMS.items() if key in t.model_fields)} "
                "only; leave it out, or change upgrade.transform"
            )
        return super().unknown(key, settings, name)


UPGRADES: Upgrades = Upgrades(
    "upgrade", (JointUpgrade, SolvedUpgrade, PosthocUpgrade, UnfittedUpgrade), chooser="method"
)
