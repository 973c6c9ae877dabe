"""The table [upgrade]: how a next version and its backward transform are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from evergram.compatibility.kinds import (
    TRANSFORMS,
    LinearSettings,
    TransformSettings,
    TruncateSettings,
)
from evergram.kinds import Kinds, Needs, Settings, Share, Trait, Weight, traits_where

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
    "upgrade",
    (JointUpgrade, SolvedUpgrade, PosthocUpgrade, UnfittedUpgrade),
    chooser="method",
)
