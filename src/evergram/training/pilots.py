"""Choose what "auto" leaves open by short trainings, where the data is small enough for several.

A formula of the data's size cannot see how much of it is noise: on 9,000 reviews four times its l2
has 1.3 times its Recall@20. Small data is where that happens, and where it is cheap to find out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from evergram.data.split import Pairs, Split
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.recipe import Recipe
from evergram.training.recipe.automatic import rate_of, strengths_of

# Training pairs up to which a training takes seconds.
MOST_PAIRS = 200_000
# Factors of the formula's l2, upward first; a direction is followed as long as it gains.
L2_FACTORS = (4.0, 0.25)
MOST_MOVES = 3
RATE_FACTOR = 2.0
# A gain of less is within what another seed gives.
LEAST_GAIN = 1.005


@dataclass
class Pilots:
    """The settings that a training is run with, and the trainings that chose them.

    Args:
        recipe: with numbers in the place of the "auto" that pilots decide.
        tried: l2, table rate and selection metric of each pilot, in their order.
    """

    recipe: Recipe
    tried: list[dict[str, float]] = field(default_factory=list)


def run_pilots(recipe: Recipe, split: Split, version: int, context: RunContext) -> Pilots:
    """Return the recipe with the best l2 and table rate of a few trainings, by selection pairs.

    No test pair is looked at. The recipe comes back as it is where it leaves neither to "auto",
    where the data is large or training has a budget, and for tasks without an automatic l2.

    Args:
        split: the one that selects an epoch.
        context: where progress is shown; pilots are not saved.
    """
    if not _wants_pilots(recipe, split):
        return Pilots(recipe)
    strengths, rate = strengths_of(recipe, split.training), rate_of(recipe)
    untested = replace(split, test=Pairs.none(), final=None)
    pilots = Pilots(recipe)

    def measure(l2: float, rate: float) -> float:
        chosen = _with(recipe, l2, strengths.l2_measure, rate)
        title = f"{context.title} pilot {len(pilots.tried) + 1}"
        quiet = replace(context, folder=None, callbacks=(), title=title)
        history = fit_encoder(chosen, untested, version, quiet).history
        value = max(record[recipe.training.metric] for record in history)
        pilots.tried.append({"l2": l2, "table_rate": rate, recipe.training.metric: value})
        return value

    l2, value = strengths.l2, measure(strengths.l2, rate)
    if recipe.task.l2 == "auto":
        l2, value = _climb(l2, value, lambda candidate: measure(candidate, rate))
    if recipe.training.table_rate == "auto":
        faster = RATE_FACTOR * rate
        if measure(l2, faster) > LEAST_GAIN * value:
            rate = faster
    pilots.recipe = _with(recipe, l2, strengths.l2_measure, rate)
    return pilots


def _wants_pilots(recipe: Recipe, split: Split) -> bool:
    task, training = recipe.task, recipe.training
    return (
        "auto" in (task.l2, training.table_rate)
        and task.kind == "pointwise"
        and recipe.model.kind == "factorization"
        and not recipe.model.normalize
        and training.budget is None
        and len(split.training) <= MOST_PAIRS
        and len(split.selection) > 0
    )


def _climb(start: float, value: float, measure: Callable[[float], float]) -> tuple[float, float]:
    """Return the best of `start` times powers of a factor, and its value."""
    best = start
    for factor in L2_FACTORS:
        for _ in range(MOST_MOVES):
            candidate = factor * best
            measured = measure(candidate)
            if measured <= LEAST_GAIN * value:
                break
            best, value = candidate, measured
        if best != start:
            break
    return best, value


def _with(recipe: Recipe, l2: float, l2_measure: str, rate: float) -> Recipe:
    task = recipe.task.model_copy(update={"l2": l2, "l2_measure": l2_measure})
    training = recipe.training.model_copy(update={"table_rate": rate})
    return recipe.model_copy(update={"task": task, "training": training})
