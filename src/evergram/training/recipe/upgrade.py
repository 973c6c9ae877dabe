"""The table [upgrade]: how a next version is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from evergram.compatibility.kinds import (
    TRANSFORMS,
    LinearSettings,
    TransformSettings,
    TruncateSettings,
)
from evergram.did_you_mean import did_you_mean
from evergram.kinds import Kinds, Positive, Rate, Settings, Share, Weight, traits_where
from evergram.requirements import Trait
from evergram.training.recipe.methods import METHODS

# Which objects the mean of the joint alignment loss is over.
AlignedObjects = Literal["all", "paper-code", "batch"]
Ratio = Annotated[float, Field(ge=0, lt=1)]
# Transforms that are solved for with two sides that are weighed by different matrices.
SOLVED_BY_SIDE = ("linear", "affine")


class UpgradeSettings(Settings):
    """How the next version and its backward transform are made. [BC] §3, Table 1.

    `method` names some settings at once; any that is written with it wins.
    """

    method: str | None = None
    # The transform is trained together with the model, afterwards, or not at all.
    fit: Literal["joint", "posthoc", "none"] = "joint"
    transform: Annotated[TransformSettings, TRANSFORMS] = LinearSettings()
    # The model is new, goes on from the version before, or is the version before.
    start: Literal["fresh", "previous", "frozen"] = "fresh"
    # Share of known objects that alignment never sees; its error is measured on them.
    held_out: Share = 0.05
    # Also train the same model without alignment, to say what compatibility cost.
    alone: bool = True

    def solved(self) -> SolvedUpgrade:
        """Return the settings by which a model that is trained already gets its transform."""
        own = {k: getattr(self, k) for k in ("held_out", "steps") if hasattr(self, k)}
        transform = self.transform if self.transform.has_closed_form else LinearSettings()
        return SolvedUpgrade(**own, transform=transform, alone=False)

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where(
            {
                Trait.NEW_MODEL: self.start != "previous",
                Trait.FITTED_AFTERWARDS: self.fit != "joint",
            }
        )


class UnfittedUpgrade(UpgradeSettings):
    """Nothing is fitted: a transform that is learned would stay as it was drawn."""

    fit: Literal["none"] = "none"
    transform: Annotated[TransformSettings, TRANSFORMS] = TruncateSettings()

    @model_validator(mode="after")
    def _nothing_to_learn(self) -> Self:
        if self.transform.is_learned:
            raise ValueError(
                f"upgrade.transform = {self.transform.kind!r} is fitted, and upgrade.fit = 'none' "
                "fits nothing; leave it out, or set upgrade.fit = 'joint' or 'posthoc'"
            )
        return self


class FittedUpgrade(UpgradeSettings):
    """The keys of every way of fitting a transform."""

    # Errors are counted at all past versions (BC-Aligner) or at the one before alone.
    steps: Literal["multi", "single"] = "multi"
    # The transform is Adam's, or the closed form on all objects. Joint training is "closed" where
    # there is a closed form, unless something else is written: it replaces the trained transform
    # where it has the smaller error.
    solver: Literal["gradient", "closed"] = "gradient"

    @model_validator(mode="after")
    def _closed_where_there_is_one(self) -> Self:
        if self.solver == "closed" and not self.transform.has_closed_form:
            closed = [kind for kind, each in TRANSFORMS.items() if each.has_closed_form]
            raise ValueError(
                f"upgrade.transform = {self.transform.kind!r} has no closed form, "
                f"{', '.join(closed)} have one; set upgrade.solver = 'gradient'"
            )
        return self


class GradientUpgrade(FittedUpgrade):
    """The keys of transforms that are trained by Adam."""

    transform_rate: Rate = 3e-3
    # The loss is over all objects, as [BC] has it; over a batch's, with negatives, as its authors'
    # code, where W also starts as PyTorch's layers do, uniform in ±1/√D_k; or over a batch's pairs.
    objects: AlignedObjects = "all"
    # Of each side, at most so many that "all" draws for a step, or that "batch" takes.
    rows: Positive = 512
    # The best epoch (posthoc: the transform with the smallest error) is looked for after this many.
    select_after: Annotated[int, Field(ge=0)] = 0


class WeighingUpgrade(FittedUpgrade):
    """The keys of ways of fitting that weigh errors by what known consumers make of them."""

    # μ: how much of an error is weighed by what consumers that have a probe make of it.
    consumer_weight: Ratio = 0.0

    @model_validator(mode="after")
    def _weighs_consumers_where_it_can(self) -> Self:
        solved = self.solver == "closed" and self.transform.kind not in SOLVED_BY_SIDE
        if self.consumer_weight and solved:
            raise ValueError(
                f"upgrade.transform = {self.transform.kind!r} cannot be solved for with "
                f"upgrade.consumer_weight = {self.consumer_weight:g}, "
                f"{' and '.join(SOLVED_BY_SIDE)} can; set upgrade.solver = 'gradient', or "
                "upgrade.consumer_weight = 0"
            )
        return self


class JointUpgrade(GradientUpgrade, WeighingUpgrade):
    """The transform is trained together with the model, λ = `weight`."""

    fit: Literal["joint"] = "joint"
    weight: Weight = 16.0


class PosthocUpgrade(GradientUpgrade):
    """The transform is trained after the model, by `fit_epochs` passes over the objects; over the
    pairs, unless `objects` is "all"."""

    fit: Literal["posthoc"] = "posthoc"
    solver: Literal["gradient"] = "gradient"
    fit_epochs: Positive = 100

    @model_validator(mode="after")
    def _selects_an_epoch(self) -> Self:
        if self.select_after and self.objects == "all":
            raise ValueError(
                f"upgrade.select_after is {self.select_after}, and passes over all objects select "
                "none; leave it out, or set upgrade.objects = 'batch' or 'paper-code'"
            )
        return self


class SolvedUpgrade(WeighingUpgrade):
    """The transform is solved for after the model was trained."""

    fit: Literal["posthoc"] = "posthoc"
    solver: Literal["closed"] = "closed"


class _Upgrades(Kinds[UpgradeSettings]):
    """The ways of fitting; of the two that are posthoc, `solver` chooses."""

    others: ClassVar[Mapping[str, type[UpgradeSettings]]] = {
        "'posthoc' with upgrade.solver = 'closed'": SolvedUpgrade
    }

    def completed(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values with those of their method, the keys of a transform in its own table,
        and the solver of joint training."""
        method = values.get("method")
        if isinstance(method, str):  # one of the wrong type is refused by its field
            if method not in METHODS:
                raise ValueError(
                    f"upgrade.method is {method!r}; it must be one of {', '.join(METHODS)}"
                    f"{did_you_mean(method, METHODS)}"
                )
            named = {**METHODS[method], **values}
            settings = self.class_of(named) or UpgradeSettings
            values = {k: v for k, v in named.items() if k in values or k in settings.model_fields}
        kind = values.get("transform")
        if isinstance(kind, str) and kind in TRANSFORMS:
            fields = TRANSFORMS[kind].model_fields.keys() - {"kind"}
            own = {key: values[key] for key in fields & values.keys()}
            values = {k: v for k, v in values.items() if k not in own}
            values["transform"] = {"kind": kind, **own}
        if values.get("fit", "joint") != "joint" or "solver" in values:
            return values
        transform = TRANSFORMS.of(values.get("transform", "linear"))
        return {**values, "solver": "closed"} if transform.has_closed_form else values

    def unknown(self, key: str, settings: type[UpgradeSettings], name: str) -> str:
        if any(key in each.model_fields for each in TRANSFORMS.values()):
            return (
                f"upgrade.{key} is used with upgrade.transform = "
                f"{' or '.join(repr(k) for k, t in TRANSFORMS.items() if key in t.model_fields)} "
                "only; leave it out, or change upgrade.transform"
            )
        return super().unknown(key, settings, name)

    def class_of(self, values: Mapping[str, Any]) -> type[UpgradeSettings] | None:
        if values.get("fit") == "posthoc" and values.get("solver") == "closed":
            return SolvedUpgrade
        return super().class_of(values)


UPGRADES: _Upgrades = _Upgrades(
    "upgrade", (JointUpgrade, PosthocUpgrade, UnfittedUpgrade), chooser="fit"
)
