"""The settings of a comparison: the table [compare] of a TOML file, and a recipe per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from evergram.data.split import Split
from evergram.did_you_mean import did_you_mean
from evergram.errors import RecipeError
from evergram.kinds import Positive, Settings, Weight
from evergram.training.build import with_selecting_metric
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.recipe import overridden, override_keys, values_of_file
from evergram.training.recipe.tables import METHODS as UPGRADES
from evergram.training.recipe.tables import JointUpgrade, Method
from evergram.validation import sentence_of
from reproduction.recipe import PAPER_UPGRADES, PaperRecipe

# Methods whose models are trained without alignment: how the transform is fitted, and its kind.
# Sources: Zielnicki and Hsiao, "Orthogonal low rank embedding stabilization", RecSys 2025; Ricci et
# al., "λ-orthogonality regularization for compatible representation learning", 2025.
VARIANTS: dict[str, tuple[str, str]] = {
    "post-affine": ("post-closed", "affine"),
    "post-orthogonal": ("post-closed", "orthogonal"),
    "post-lambda-orthogonal": ("post-lin-sloss", "lambda_orthogonal"),
    "post-mlp": ("post-lin-sloss", "residual_mlp"),
}
METHODS: dict[str, Method] = UPGRADES | {name: UPGRADES[fit] for name, (fit, _) in VARIANTS.items()}
# The method with which all others are compared.
REFERENCE = "keep-all"
# Keys of [upgrade] that each method sets itself.
SET_BY_METHODS = {"method", "alone", "start", "transform"}
# Keys of [compare] that add runs without affecting existing ones.
EXTENT = {"methods", "seeds", "lambdas", "lambda_methods"}


class CompareSettings(Settings):
    """The table [compare]."""

    methods: Annotated[list[str], Field(min_length=1)] = Field(default=list(METHODS))
    # Each seed is for M_0, methods and consumers. A number n: the recipe's seed and n - 1 more.
    seeds: (
        Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)] | Positive
    ) = 1
    # Overrides `split.selection`.
    protocol: Literal["strict", "paper"] | None = None
    # The values of λ to sweep, and the methods for which to sweep it.
    lambdas: list[Weight] = Field(default=[])
    lambda_methods: list[str] = Field(
        default=["joint-notrans", "joint-lin-sloss", "bc-aligner", "evergram"]
    )
    # Consumers: widths and dropouts to choose from, classifiers per task, maximum epochs.
    hidden: Annotated[list[Positive], Field(min_length=1)] = Field(default=[128, 256, 512, 1024])
    dropout: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=1)] = Field(
        default=[0.0, 0.25, 0.5]
    )
    consumers: Positive = 10
    epochs: Positive = 100
    # Maximum number of examples per set, drawn at random; None for all.
    max_examples: Positive | None = None
    # Ratings that a candidate needs for the tasks on ratings.
    minimum_ratings: Positive = 10

    @model_validator(mode="after")
    def _known(self) -> Self:
        for key in ("methods", "lambda_methods"):
            names = getattr(self, key)
            for name in names:
                if name not in METHODS:
                    allowed = ", ".join(METHODS)
                    raise ValueError(f"compare.{key} has {name!r}; a method is one of {allowed}")
            if len(set(names)) < len(names):
                raise ValueError(f"compare.{key} names a method twice")
        for name in self.lambda_methods if self.lambdas else ():
            if METHODS[name].fit != "joint":
                raise ValueError(
                    f"compare.lambda_methods has {name!r}, which has no λ; name joint methods"
                )
        if isinstance(self.seeds, list) and len(set(self.seeds)) < len(self.seeds):
            raise ValueError("compare.seeds names a seed twice")
        return self


class _Tables(Settings):
    """The table within its file, so that errors state full key names."""

    compare: CompareSettings = CompareSettings()


@dataclass(frozen=True)
class Run:
    """A method of a comparison."""

    method: str
    weight: float | None = None  # λ, if it differs from the recipe's

    @property
    def name(self) -> str:
        """The name of the run's lineage."""
        return self.method if self.weight is None else f"{self.method}-lambda-{self.weight:g}"

    @property
    def shares_models(self) -> bool:
        """Whether it uses the models that Keep-All trained, and only fits another transform."""
        settings = METHODS[self.method]
        unaligned = settings.fit != "joint" and settings.start == "fresh"
        return unaligned and self.method != REFERENCE


@dataclass(frozen=True)
class Comparison:
    """Methods on one corpus. Create it with `load` or `of`."""

    settings: CompareSettings  # the table [compare]
    upgrade: Mapping[str, Any]  # the table [upgrade] as written; each method uses some of its keys
    recipes: Mapping[str, Recipe]  # by method; they differ in [upgrade] only

    @classmethod
    def load(cls, path: Path, overrides: Sequence[str] = ()) -> Comparison:
        """Read a comparison from a TOML file. Raises: RecipeError: as `Recipe.load`."""
        values = values_of_file(path)
        return cls.of(values, overrides, folder=path.parent, source=str(path))

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any],
        overrides: Sequence[str] = (),
        *,
        folder: Path | None = None,
        source: str = "The recipe",
    ) -> Comparison:
        """Build a comparison from nested dicts, with the arguments of `Recipe.of`.

        Raises: RecipeError: as `Recipe.of`, or a key of [upgrade] is used by no method.
        """
        tables = ("compare", "upgrade")
        ours = [o for o in overrides if o.partition("=")[0].partition(".")[0].strip() in tables]
        others = [each for each in overrides if each not in ours]
        for key in override_keys(ours):
            table, _, name = key.partition(".")
            if table == "upgrade" and name in SET_BY_METHODS:
                raise RecipeError(f"--set {key} changes nothing: methods set it; leave it out.")
        own = overridden({name: values.get(name, {}) for name in tables}, ours)
        plain = {name: table for name, table in values.items() if name not in tables}
        try:
            settings = _Tables.model_validate({"compare": own["compare"]}).compare
        except ValidationError as error:
            raise RecipeError(f"{source}: {sentence_of(error, _Tables)}") from None
        written = own["upgrade"]
        if not isinstance(written, dict):
            raise RecipeError(f"{source}: upgrade is {written!r}; it must be a table.")
        recipes, used = {}, set(SET_BY_METHODS)
        swept = settings.lambda_methods if settings.lambdas else []
        for method in dict.fromkeys([REFERENCE, *settings.methods, *swept]):
            upgrade = upgrade_of(method, written)
            recipes[method] = PaperRecipe.of(
                {**plain, "upgrade": upgrade}, others, folder=folder, source=source
            )
            used |= upgrade.keys()
        known = {key for each in PAPER_UPGRADES.every() for key in each.model_fields}
        for key in sorted(written.keys() - used):
            hint = "" if key in known else did_you_mean(key, known)
            raise RecipeError(
                f"{source}: upgrade.{key} is used by none of {', '.join(recipes)}; leave it out"
                f"{hint}."
            )
        return cls(settings, written, recipes)

    @property
    def base(self) -> Recipe:
        """Keep-All's recipe."""
        return self.recipes[REFERENCE]

    @property
    def weight(self) -> float:
        """λ of the joint methods."""
        return float(self.upgrade.get("weight", JointUpgrade.model_fields["weight"].default))

    @property
    def protocol(self) -> str:
        return self.settings.protocol or self.base.split.selects_by

    @property
    def seeds(self) -> Sequence[int]:
        seeds, first = self.settings.seeds, self.base.seed
        return seeds if isinstance(seeds, list) else range(first, first + seeds)

    @property
    def runs(self) -> list[Run]:
        """Keep-All, the reference, then the methods and the sweep. In the sweep, λ =
        `upgrade.weight` is the method's own run."""
        named = map(Run, [REFERENCE, *self.settings.methods])
        swept = (run for runs in self.sweep.values() for run in runs.values())
        return list(dict.fromkeys([*named, *swept]))

    @property
    def sweep(self) -> dict[str, dict[float, Run]]:
        """The runs of the sweep by method and λ, ascending."""
        settings, own = self.settings, self.weight
        return {
            method: {w: Run(method, None if w == own else w) for w in sorted(set(settings.lambdas))}
            for method in (settings.lambda_methods if settings.lambdas else ())
        }

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the result of a run, as JSON."""
        recipe = self.base.model_dump(mode="json", exclude={"upgrade"})
        compare = self.settings.model_dump(mode="json", exclude=EXTENT)
        return {**recipe, "upgrade": dict(self.upgrade), "compare": compare}

    def selecting(self, split: Split, progress: Progress) -> Comparison:
        """Return the comparison with a metric that can distinguish models on a split."""
        base, _ = with_selecting_metric(self.base, split, progress)
        same = {"metrics": base.metrics, "training": base.training}
        recipes = {m: recipe.model_copy(update=same) for m, recipe in self.recipes.items()}
        return replace(self, recipes=recipes)

    def recipe_of(self, run: Run, seed: int) -> Recipe:
        """Return the recipe of one run's lineage."""
        values = self.recipes[run.method].model_dump(mode="json")
        training = values["training"]
        values["seed"] = seed
        values["split"]["selection"] = self.protocol
        values["metrics"] = list(dict.fromkeys([*values["metrics"], training["metric"]]))
        # Compare methods on all test queries, even if it takes long.
        training["evaluate_share"] = "full"
        training["epochs"] = epochs_of(run.method, training["epochs"])
        if run.weight is not None:
            values["upgrade"]["weight"] = run.weight
        return PaperRecipe.stored(values)


def upgrade_of(method: str, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table [upgrade] of a method: its settings, and the written keys that it uses.
    [BC] Table 1."""
    if method in VARIANTS:
        fit, transform = VARIANTS[method]
        return upgrade_of(fit, written) | {"transform": transform}
    keys = PAPER_UPGRADES[method].model_fields.keys() - SET_BY_METHODS
    used = {key: value for key, value in written.items() if key in keys}
    if METHODS[method].fit == "posthoc" and used.get("objects", "all") == "all":
        used.pop("select_after", None)  # passes over all objects select no epoch
    return {**used, "method": method, "alone": False}


def epochs_of(method: str, epochs: int) -> int:
    """Return the number of epochs for a method's models after M_0. Methods that start from the
    previous model use half, as in [BC]'s code (250 instead of 500)."""
    goes_on = METHODS[method].start == "previous"
    return max(1, epochs // 2) if goes_on else epochs
