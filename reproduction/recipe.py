"""The recipe of the papers' experiments: the usual keys plus keys that only the papers need.

A `PaperRecipe` is trained, stored and upgraded like any `Recipe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, create_model, model_validator
from torch import Tensor

from evergram import Recipe
from evergram.encoders.kinds import ENCODERS, EncoderSettings, GraphSageSettings, TwoTowerSettings
from evergram.gramian.estimator import GramianEstimator
from evergram.gramian.kinds import (
    ESTIMATORS,
    BatchEstimatorSettings,
    EstimatorSettings,
    SAGramSettings,
    SampledSettings,
    SOGramSettings,
)
from evergram.kinds import Kinds, Needs, Positive, Rate, Settings, Trait
from evergram.training.recipe.tables import (
    SPLITS,
    TRAININGS,
    UPGRADES,
    AdamTraining,
    AdaptiveTraining,
    AlignedObjects,
    GradientUpgrade,
    JointUpgrade,
    PosthocUpgrade,
    RandomSplit,
    SplitSettings,
    StepSettings,
    TimeSplit,
    Training,
    TransformTraining,
    UpgradeSettings,
)

K = TypeVar("K", bound=Kinds[Any])


class _ProtocolKeys(SplitSettings):
    """`selection` "paper": the same held-out queries select and test, as in [BC]'s code."""

    selection: Literal["strict", "paper"] = "strict"

    @property
    def selects_by(self) -> Literal["strict", "paper"]:
        return self.selection


class PaperRandomSplit(RandomSplit, _ProtocolKeys): ...


class PaperTimeSplit(TimeSplit, _ProtocolKeys): ...


class _StartKeys(EncoderSettings):
    """`scale`: the standard deviation of the initial tables."""

    scale: Annotated[Rate, Needs(Trait.SIZED)] = 0.1

    @property
    def start_scale(self) -> float:
        return self.scale


class PaperTwoTower(TwoTowerSettings):
    """`residual` false: only the layers, on the concatenated input embeddings. [G1] §4."""

    residual: bool = True

    def options(self, version: int) -> dict[str, Any]:
        return {**super().options(version), "concatenate": not self.residual}

    def layer_numbers(self, dim: int, version: int) -> int:
        if self.hidden or self.residual:
            return super().layer_numbers(dim, version)
        return 2 * (self.input_dim or dim) * dim


class PaperGraphSage(GraphSageSettings):
    """`repeats`: one edge per interaction instead of one per pair, as in [BC]'s code."""

    repeats: bool = False

    def options(self, version: int) -> dict[str, Any]:
        return {**super().options(version), "repeats": self.repeats}


class _GradientKeys(BatchEstimatorSettings):
    """`gradient` "sampled": computed on the sampled entities, as the baselines of [G2] §4."""

    gradient: Annotated[Literal["examples", "sampled"], Needs(Trait.DRAWN_APART)] = "examples"

    @property
    def samples_gradient(self) -> bool:
        return self.gradient == "sampled"


class PaperSampled(SampledSettings, _GradientKeys): ...


class PaperSAGram(SAGramSettings, _GradientKeys): ...


class PaperSOGram(SOGramSettings, _GradientKeys):
    """`correct_start` false keeps the bias of the zero start, as in [G2] Algorithm 2."""

    correct_start: bool = True

    def build(self, dim: int, measure: Tensor, factors: Tensor) -> GramianEstimator:
        from evergram.gramian.sogram import SOGram

        return SOGram(dim, factors.shape[1], self.rate, correct_start=self.correct_start)


class _StepKeys(StepSettings):
    """`short_batch`: train on the last, smaller batch of an epoch as well; `feature_rate`: the
    Adagrad learning rate of feature tables."""

    short_batch: Annotated[bool, Needs(Trait.SINGLE_PAIRS)] = False
    feature_rate: Annotated[Rate, Needs(Trait.FEATURE_TABLES)] = 0.005

    @property
    def fills_batches(self) -> bool:
        return not self.short_batch

    @property
    def feature_table_rate(self) -> float:
        return self.feature_rate


class PaperAdaptive(AdaptiveTraining, _StepKeys):
    @property
    def may_sweep(self) -> bool:
        return self.fills_batches and super().may_sweep


class PaperAdam(AdamTraining, _StepKeys): ...


class _AlignmentKeys(GradientUpgrade):
    """The keys of `TransformTraining`, whose epochs and rate are `fit_epochs`, `transform_rate`."""

    transform_rate: Rate = 3e-3
    objects: AlignedObjects = "all"
    rows: Positive = 512
    select_after: Annotated[int, Field(ge=0)] = 0

    @property
    def transform_training(self) -> TransformTraining:
        return TransformTraining(
            self.transform_rate, self.objects, self.rows, select_after=self.select_after
        )


class PaperJoint(JointUpgrade, _AlignmentKeys): ...


class PaperPosthoc(PosthocUpgrade, _AlignmentKeys):
    fit_epochs: Positive = 100

    @property
    def transform_training(self) -> TransformTraining:
        from reproduction.pair_fit import fit_transform

        fit = None if self.objects == "all" else fit_transform
        return TransformTraining(
            self.transform_rate, self.objects, self.rows, self.fit_epochs, self.select_after, fit
        )

    @model_validator(mode="after")
    def _selects_an_epoch(self) -> Self:
        if self.select_after and self.objects == "all":
            raise ValueError(
                f"upgrade.select_after is {self.select_after}, and passes over all objects select "
                "none; leave it out, or set upgrade.objects = 'batch' or 'paper-code'"
            )
        return self


def _with(keys: type[Settings], settings: type[Settings]) -> type[Settings]:
    """Return a settings class with additional keys."""
    return create_model(settings.__name__, __base__=(settings, keys), __module__=__name__)


def _wider(kinds: K, wide: Mapping[type[Settings], type[Settings]]) -> K:
    """Return a table of kinds in which some classes are replaced by wider ones."""
    own = dict.fromkeys(wide.get(each, each) for each in kinds.own.values())
    return type(kinds)(kinds.table, own, kinds.chooser, kinds.default)


PAPER_SPLITS = _wider(SPLITS, {RandomSplit: PaperRandomSplit, TimeSplit: PaperTimeSplit})
_OWN: dict[type[EncoderSettings], type[EncoderSettings]] = {
    TwoTowerSettings: PaperTwoTower,
    GraphSageSettings: PaperGraphSage,
}
PAPER_ENCODERS = _wider(
    ENCODERS, {each: _with(_StartKeys, _OWN.get(each, each)) for each in ENCODERS.own.values()}
)
PAPER_ESTIMATORS = _wider(
    ESTIMATORS,
    {
        SampledSettings: PaperSampled,
        SAGramSettings: PaperSAGram,
        SOGramSettings: PaperSOGram,
    },
)
PAPER_TRAININGS = _wider(TRAININGS, {AdaptiveTraining: PaperAdaptive, AdamTraining: PaperAdam})
PAPER_UPGRADES = _wider(UPGRADES, {JointUpgrade: PaperJoint, PosthocUpgrade: PaperPosthoc})


class PaperRecipe(Recipe):
    """A `Recipe` with the keys of the papers' experiments."""

    kinds: ClassVar[Mapping[str, Kinds[Any]]] = {
        **Recipe.kinds,
        "split": PAPER_SPLITS,
        "model": PAPER_ENCODERS,
        "gramian": PAPER_ESTIMATORS,
        "training": PAPER_TRAININGS,
        "upgrade": PAPER_UPGRADES,
    }

    split: Annotated[SplitSettings, PAPER_SPLITS] = PaperRandomSplit()
    model: Annotated[EncoderSettings, PAPER_ENCODERS] = PAPER_ENCODERS.of({})
    gramian: Annotated[EstimatorSettings, PAPER_ESTIMATORS] = PaperSOGram()
    training: Annotated[Training, PAPER_TRAININGS] = PaperAdaptive()
    upgrade: Annotated[UpgradeSettings, PAPER_UPGRADES] = PaperJoint()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        after = getattr(self.upgrade, "select_after", 0)
        if after and after >= self.training.epochs:
            raise ValueError(
                f"upgrade.select_after is {after} and training.epochs {self.training.epochs}; no "
                "epoch would be left to select"
            )
        return self
