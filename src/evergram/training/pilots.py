"""Choose what "auto" leaves open by short trainings, where the data is small enough for several.

A formula of the data's size cannot see how much of it is noise: on 9,000 reviews four times its l2
has 1.3 times its Recall@20. Small data is where that happens, and where it is cheap to find out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from evergram.data.row_pairs import RowPairs
from evergram.data.split import Split
from evergram.errors import TrainingError
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.recipe import Recipe
from evergram.training.recipe.automatic import rate_of, strengths_of

# Training pairs up to which a training takes seconds.
MOST_PAIRS = 200_000
# Factors of the formula's numbers, the likelier direction first; it is followed while it gains.
L2_FACTORS = (2.0, 0.5)
PENALTY_FACTORS = (0.5, 2.0)
RATE_FACTORS = (2.0, 0.5)
MOST_MOVES = 3
# A smaller gain is no reason to depart from the formula.
LEAST_GAIN = 1.005


@dataclass
class Pilots:
    """The settings that a training is run with, and the trainings that chose them.

    Args:
        recipe: with numbers in the place of the "auto" that pilots decide.
        tried: λ, l2, table rate and selection metric of each pilot, in their order.
    """

    recipe: Recipe
    tried: list[dict[str, float]] = field(default_factory=list)


def run_pilots(recipe: Recipe, split: Split, version: int, context: RunContext) -> Pilots:
    """Return the recipe with the best l2, λ and table rate of a few trainings, by selection pairs.

    No test pair is looked at. The recipe comes back as it is where it leaves neither l2 nor λ to
    "auto", where the data is large or training has a budget, and for tasks without an automatic l2.

    Args:
        split: the one that selects an epoch.
        context: where progress is shown; pilots are not saved.
    """
    if not _wants_pilots(recipe, split):
        return Pilots(recipe)
    strengths = strengths_of(recipe, split.training)
    untested = replace(split, test=RowPairs.none(), final=None)
    pilots = Pilots(recipe)

    def measure(chosen: _Chosen) -> float:
        title = f"{context.title} pilot {len(pilots.tried) + 1}"
        quiet = replace(context, folder=None, callbacks=(), title=title, warns=False)
        try:
            history = fit_encoder(chosen.within(recipe), untested, version, quiet).history
        except TrainingError:
            if not pilots.tried:
                raise
            return -math.inf  # these settings diverge; the best so far stays
        value = max(record[recipe.training.metric] for record in history)
        pilots.tried.append(
            {
                "penalty": chosen.penalty[0],
                "l2": chosen.l2,
                "table_rate": chosen.rate,
                recipe.training.metric: value,
            }
        )
        return value

    best = _Chosen(strengths.penalty, strengths.l2, strengths.l2_measure, rate_of(recipe))
    value = measure(best)
    if recipe.task.l2 == "auto":
        best, value = _climb(best, value, measure, _Chosen.with_l2_times, L2_FACTORS)
    if recipe.task.penalty == "auto":
        best, value = _climb(best, value, measure, _Chosen.with_penalty_times, PENALTY_FACTORS)
    if recipe.training.table_rate == "auto":
        best, _ = _climb(best, value, measure, _Chosen.with_rate_times, RATE_FACTORS)
    pilots.recipe = best.within(recipe)
    return pilots


@dataclass(frozen=True)
class _Chosen:
    """Numbers in the place of "auto"."""

    penalty: list[float]
    l2: float
    l2_measure: str
    rate: float

    def with_l2_times(self, factor: float) -> _Chosen:
        return replace(self, l2=factor * self.l2)

    def with_penalty_times(self, factor: float) -> _Chosen:
        return replace(self, penalty=[factor * value for value in self.penalty])

    def with_rate_times(self, factor: float) -> _Chosen:
        return replace(self, rate=factor * self.rate)

    def within(self, recipe: Recipe) -> Recipe:
        """Return the recipe with these numbers."""
        strengths = {"penalty": self.penalty, "l2": self.l2, "l2_measure": self.l2_measure}
        task = recipe.task.model_copy(update=strengths)
        training = recipe.training.model_copy(update={"table_rate": self.rate})
        return recipe.model_copy(update={"task": task, "training": training})


def _wants_pilots(recipe: Recipe, split: Split) -> bool:
    task, training = recipe.task, recipe.training
    return (
        "auto" in (task.l2, task.penalty)
        and task.kind == "pointwise"
        and recipe.model.kind == "factorization"
        and not recipe.model.normalize
        # It distils a version that pilots are not given.
        and recipe.prior.kind != "version"
        and training.budget is None
        and len(split.training) <= MOST_PAIRS
        and len(split.selection) > 0
    )


def _climb(
    start: _Chosen,
    value: float,
    measure: Callable[[_Chosen], float],
    times: Callable[[_Chosen, float], _Chosen],
    factors: tuple[float, ...],
) -> tuple[_Chosen, float]:
    """Return the best of `start` times powers of one of the factors, and its value."""
    best = start
    for factor in factors:
        for _ in range(MOST_MOVES):
            candidate = times(best, factor)
            measured = measure(candidate)
            if measured <= LEAST_GAIN * value:
                break
            best, value = candidate, measured
        if best is not start:
            break
    return best, value
