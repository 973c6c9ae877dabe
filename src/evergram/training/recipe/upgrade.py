"""The tables [upgrade] and [compare]: how a next version is made, and methods side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, model_validator

from evergram.compatibility.kinds import TRANSFORMS, LambdaUnit, TransformSettings
from evergram.did_you_mean import did_you_mean
from evergram.kinds import Positive, Rate, Share, Weight, kinds_where
from evergram.training.recipe.methods import METHODS
from evergram.training.recipe.table import KindTable, RecipeTable

# Which objects the mean of the joint alignment loss is over.
AlignedObjects = Literal["all", "paper-code", "batch"]
Ratio = Annotated[float, Field(ge=0, lt=1)]
# Transforms that are solved for with two sides that are weighed by different matrices.
SOLVED_BY_SIDE = ("linear", "affine")


class UpgradeRecipe(KindTable):
    """How the next version and its backward transform are made. [BC] §3, Table 1.

    `method` names four settings at once; any of the four that is written beside it wins.
    """

    kinds: ClassVar[Mapping[str, type[TransformSettings]]] = TRANSFORMS
    chooser = "transform"

    method: str | None = None
    # The transform is trained together with the model, afterwards, or not at all.
    fit: Literal["joint", "posthoc", "none"] = "joint"
    transform: str = "linear"
    # Errors are counted at all past versions (BC-Aligner) or at the one before alone.
    steps: Literal["multi", "single"] = "multi"
    # The model is new, goes on from the version before, or is the version before.
    start: Literal["fresh", "previous", "frozen"] = "fresh"
    # λ, on mean ‖δ‖² ("norm") or in the unit of [BC]'s code ("paper").
    weight: Weight = 16.0
    unit: LambdaUnit = "paper"
    transform_rate: Rate = 3e-3
    # linear: W starts orthonormal, or as PyTorch's layers do, uniform in ±1/√D_k.
    transform_start: Literal["orthonormal", "uniform"] = "orthonormal"
    # The loss is over all objects, as [BC] has it; over a batch's, with negatives, as its authors'
    # code; or over a batch's pairs.
    objects: AlignedObjects = "all"
    # Of each side, at most so many that "all" draws for a step, or that "batch" takes.
    rows: Positive = 512
    # The transform is Adam's, or the closed form on all objects. Joint training is "closed" where
    # there is a closed form, unless something else is written: it replaces the trained transform
    # where it has the smaller error.
    solver: Literal["gradient", "closed"] = "gradient"
    # posthoc by gradient: passes over the objects; over the pairs, unless `objects` is "all".
    fit_epochs: Positive = 100
    # μ: how much of an error is weighed by what consumers that have a probe make of it.
    consumer_weight: Ratio = 0.0
    # Their names; all that have a probe, where it is empty.
    consumers: list[str] = Field(default=[])
    # Share of known objects that alignment never sees; its error is measured on them.
    held_out: Share = 0.05
    # Also train the same model without alignment, to say what compatibility cost.
    alone: bool = True
    # The best epoch (posthoc: the transform with the smallest error) is looked for after this many.
    select_after: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _with_method_and_solver(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        name = values.get("method")
        if isinstance(name, str):  # one of the wrong type is refused by its field
            if name not in METHODS:
                allowed = ", ".join(METHODS)
                raise ValueError(
                    f"upgrade.method is {name!r}; it must be one of {allowed}"
                    f"{did_you_mean(name, METHODS)}"
                )
            values = {**METHODS[name], **values}
        if values.get("fit") == "none":
            values = {"transform": "truncate", **values}  # a learned one would stay as it was drawn
        chosen = {key: cls.model_fields[key].default for key in ("fit", "transform")} | values
        closed = chosen["transform"] in kinds_where(TRANSFORMS, "has_closed_form")
        return {"solver": "closed", **values} if closed and chosen["fit"] == "joint" else values

    @model_validator(mode="after")
    def _closed_where_there_is_one(self) -> UpgradeRecipe:
        if self.solver == "closed" and self.fit != "none" and not self.chosen.has_closed_form:
            closed = ", ".join(kinds_where(TRANSFORMS, "has_closed_form"))
            raise ValueError(
                f"upgrade.transform = {self.transform!r} has no closed form, {closed} have one; "
                "set upgrade.solver = 'gradient'"
            )
        return self

    @model_validator(mode="after")
    def _weighs_consumers_where_it_can(self) -> UpgradeRecipe:
        if len(set(self.consumers)) < len(self.consumers):
            raise ValueError("upgrade.consumers names a consumer twice")
        solved = self.solver == "closed" and self.fit != "none"
        if self.consumer_weight and solved and self.transform not in SOLVED_BY_SIDE:
            raise ValueError(
                f"upgrade.transform = {self.transform!r} cannot be solved for with "
                f"upgrade.consumer_weight = {self.consumer_weight:g}, "
                f"{' and '.join(SOLVED_BY_SIDE)} can; set upgrade.solver = 'gradient', or "
                "upgrade.consumer_weight = 0"
            )
        return self

    @property
    def built(self) -> tuple[str, dict[str, Any]]:
        """The transform that is made: its kind, and its options as of `build_transform`."""
        if self.fit == "none" and self.chosen.is_learned:
            return "truncate", {}
        return self.transform, self.chosen.options()

    @property
    def weighs_consumers(self) -> bool:
        """Whether its way of fitting can weigh errors by consumers."""
        return self.fit == "joint" or (self.fit == "posthoc" and self.solver == "closed")

    @property
    def chosen(self) -> TransformSettings:
        return cast(TransformSettings, super().chosen)


class CompareRecipe(RecipeTable):
    """`evergram compare`: methods side by side, by the protocol of [BC] §4 and App. A."""

    methods: Annotated[list[str], Field(min_length=1)] = Field(default=list(METHODS))
    # Each is a seed of the whole: M_0, methods, consumers. A number n: the recipe's and n - 1 more.
    seeds: (
        Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)] | Positive
    ) = 1
    # `split.selection` of the comparison; the split's own where it is absent.
    protocol: Literal["strict", "paper"] | None = None
    # The values of λ to sweep, and the methods to sweep it for.
    lambdas: list[Weight] = Field(default=[])
    lambda_methods: list[str] = Field(
        default=["joint-notrans", "joint-lin-sloss", "bc-aligner", "evergram"]
    )
    # Consumers: widths and dropouts to choose from, classifiers a task, epochs at most.
    hidden: Annotated[list[Positive], Field(min_length=1)] = Field(default=[128, 256, 512, 1024])
    dropout: Annotated[list[Ratio], Field(min_length=1)] = Field(default=[0.0, 0.25, 0.5])
    consumers: Positive = 10
    epochs: Positive = 100
    # At most so many examples of a set, drawn; all where it is absent.
    max_examples: Positive | None = None
    # Ratings that a candidate needs to be asked about.
    minimum_ratings: Positive = 10

    @model_validator(mode="after")
    def _known(self) -> CompareRecipe:
        for key in ("methods", "lambda_methods"):
            names = getattr(self, key)
            for name in names:
                if name not in METHODS:
                    allowed = ", ".join(METHODS)
                    raise ValueError(f"compare.{key} has {name!r}; a method is one of {allowed}")
            if len(set(names)) < len(names):
                raise ValueError(f"compare.{key} names a method twice")
        for name in self.lambda_methods if self.lambdas else ():
            if METHODS[name]["fit"] != "joint":
                raise ValueError(
                    f"compare.lambda_methods has {name!r}, which has no λ; name joint methods"
                )
        if isinstance(self.seeds, list) and len(set(self.seeds)) < len(self.seeds):
            raise ValueError("compare.seeds names a seed twice")
        return self
