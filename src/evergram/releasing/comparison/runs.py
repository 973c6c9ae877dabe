"""List the runs of a comparison: methods, λ and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evergram.training.recipe import Recipe
from evergram.training.recipe.methods import METHODS
from evergram.training.recipe.upgrade import by_method


@dataclass(frozen=True)
class Run:
    """A method of a comparison.

    Args:
        weight: λ, if it is not the recipe's.
    """

    method: str
    weight: float | None = None

    @property
    def name(self) -> str:
        """The name of the run's lineage."""
        return self.method if self.weight is None else f"{self.method}-lambda-{self.weight:g}"

    @property
    def shares_models(self) -> bool:
        """Whether it uses the models that Keep-All has trained: only its transform is its own."""
        settings = METHODS[self.method]
        unaligned = settings["fit"] != "joint" and settings["start"] == "fresh"
        return unaligned and self.method != "keep-all"


def runs_of(recipe: Recipe) -> list[Run]:
    """Return Keep-All, which all others are measured beside, then the methods and the sweep; λ =
    `upgrade.weight` is the method itself."""
    settings = recipe.comparison
    named = map(Run, ["keep-all", *settings.methods])
    swept = (run for runs in sweep_of(recipe).values() for run in runs.values())
    return list(dict.fromkeys([*named, *swept]))


def sweep_of(recipe: Recipe) -> dict[str, dict[float, Run]]:
    """Return the runs of each method of the sweep, by λ, ascending."""
    settings, own = recipe.comparison, getattr(recipe.upgrade, "weight", None)
    return {
        method: {w: Run(method, None if w == own else w) for w in sorted(set(settings.lambdas))}
        for method in (settings.lambda_methods if settings.lambdas else ())
    }


def seeds_of(recipe: Recipe) -> Sequence[int]:
    """Return the seeds of `compare.seeds`; a number n means the recipe's and n - 1 more."""
    seeds = recipe.comparison.seeds
    return seeds if isinstance(seeds, list) else range(recipe.seed, recipe.seed + seeds)


def epochs_of(method: str, epochs: int) -> int:
    """Return for how many epochs a method trains the models after M_0: what goes on from the model
    before has half of those from scratch, 250 of 500 in [BC]'s code."""
    goes_on = METHODS[method]["start"] == "previous"
    return max(1, epochs // 2) if goes_on else epochs


def recipe_of(recipe: Recipe, run: Run, seed: int, protocol: str) -> Recipe:
    """Return the recipe of one run's lineage: the method's settings win over those of [upgrade]."""
    values = recipe.model_dump(mode="json", exclude={"compare"})
    values["seed"] = seed
    values["split"]["selection"] = protocol
    values["metrics"] = list(dict.fromkeys([*recipe.metrics, recipe.training.metric]))
    # Methods are compared on every test query, whatever that takes.
    values["training"]["evaluate_share"] = "full"
    values["training"]["epochs"] = epochs_of(run.method, recipe.training.epochs)
    named = {key for settings in METHODS.values() for key in settings}
    own = {k: v for k, v in values["upgrade"].items() if k not in named} | {"alone": False}
    if run.weight is not None:
        own["weight"] = run.weight
    values["upgrade"] = by_method(own, run.method).model_dump(mode="json")
    return Recipe.stored(values)
