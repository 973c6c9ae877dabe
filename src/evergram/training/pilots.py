"""Pilots: short training runs that choose values for "auto" settings on small data.

A formula based on the data's size cannot know how noisy the data is: on 9,000 reviews, four times
the formula's l2 gives 1.3 times its Recall@20. This happens on small data, where trying is cheap.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from evergram.data.split import RowPairs, Split, among
from evergram.errors import TrainingError
from evergram.kinds import OF_A_RUN, Trait
from evergram.training.build import FitSettings, rate_of, strengths_of
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import StepSettings, Training

# Pilots run on at most this many training pairs, so that one takes seconds.
MOST_PAIRS = 200_000
# Number of pilots, and of the solver's sweeps in each: more sweeps hardly change the ranking.
PILOTS, PILOT_SWEEPS = 8, 5
# Share of the time until a run's limit that pilots may take.
MOST_TIME = 0.3
# Share of the training pairs held out to evaluate pilots, in addition to the selection pairs.
HELD_OUT = 0.1
# A pilot replaces the best one so far only if its metric is this many times as high.
LEAST_GAIN = 1.005
# The other measure of l2. Both give an entity of average count the same l2; "examples" gives rare
# entities less and frequent ones more.
OTHER = {"penalty": "examples", "examples": "penalty"}


@dataclass
class Pilots:
    """The recipe with the values that pilots chose; and for each pilot, in order, its λ, l2,
    measure of l2, table rate and selection metric."""

    recipe: Recipe
    tried: list[dict[str, float | str]] = field(default_factory=list)


def run_pilots(recipe: Recipe, split: Split, version: int, context: RunContext) -> Pilots:
    """Return the recipe with the λ and l2 that were best in pilots; unchanged if it wants none.

    Pilots are evaluated on the selection pairs and a tenth of the training pairs, never on test
    pairs. If the solver can minimise the objective, a pilot is a few of its sweeps, and version 0
    is then also trained by the solver unless the recipe's settings exclude it. Otherwise a pilot is
    a whole training run of the recipe, and pilots also choose the table rate.
    """
    if not wants_pilots(recipe, split):
        return Pilots(recipe)
    training = recipe.training
    sweeps = training.swept(epochs=PILOT_SWEEPS, evaluate_every=PILOT_SWEEPS, patience=0)
    pilot_recipe = recipe.model_copy(update={"training": sweeps})
    run = OF_A_RUN - ({Trait.ONE_PROCESS} if context.collectives.size > 1 else set())
    unmet = FitSettings.of(pilot_recipe, split.training, version).unmet(run)
    if solves := not unmet:
        # An upgrade may train a transform together with the model, which the solver cannot.
        default_gramian = recipe.gramian == type(recipe).model_fields["gramian"].default
        solves = version == 0 and training.may_sweep and default_gramian
    else:
        pilot_recipe = recipe
    context.progress.say(
        f"Up to {PILOTS} short training runs (pilots) choose task.penalty and task.l2 first; to "
        "skip them, set both to numbers in the recipe."
    )
    pilot_split, metric = with_more_selection(split), training.metric
    ends = context.share_of_time(MOST_TIME)
    tried: list[dict[str, float | str]] = []

    def measure(settings: PilotSettings) -> float:
        """Train a pilot and return its metric; −∞ if it diverges or the time is up."""
        over = bool(tried) and ends is not None and time.monotonic() > ends
        # The first process decides, so that all processes train the same pilots.
        if context.collectives.from_first(lambda: over):
            return -math.inf
        quiet = replace(
            context,
            folder=None,
            callbacks=(),
            title=f"{context.title} pilot {len(tried) + 1} of at most {PILOTS}",
            warns=False,
            progress=context.progress.without_epochs(),
            ends=None,
        )
        try:
            trained = fit_encoder(settings.within(pilot_recipe), pilot_split, version, quiet)
        except TrainingError:
            if not tried:
                raise
            return -math.inf
        value = max(record[metric] for record in trained.history)
        tried.append({**asdict(settings), metric: value})
        context.progress.say(f"Pilot {len(tried)} of at most {PILOTS}: {metric} {value:.4f}.")
        return value

    best, *others = starts(pilot_recipe, split)
    best_value = measure(best)
    for settings in others[: PILOTS - 1]:
        value = measure(settings)
        if value > LEAST_GAIN * best_value:
            best, best_value = settings, value
    chosen = best.within(recipe)
    if solves:
        chosen = chosen.model_copy(update={"training": chosen.training.swept()})
    return Pilots(chosen, tried)


@dataclass(frozen=True)
class PilotSettings:
    """Numbers that replace "auto" in a pilot."""

    penalty: float
    l2: float
    l2_measure: str
    table_rate: float

    def within(self, recipe: Recipe) -> Recipe:
        """Return the recipe with these numbers."""
        # Pilots choose one λ; a list with one per measure stays unchanged.
        penalty = [self.penalty] if recipe.task.penalty == "auto" else recipe.task.penalty
        strengths = {"penalty": penalty, "l2": self.l2, "l2_measure": self.l2_measure}
        task = recipe.task.model_copy(update=strengths)
        training: Training = recipe.training
        if isinstance(training, StepSettings) and self.table_rate:  # sweeps have none
            training = training.model_copy(update={"table_rate": self.table_rate})
        return recipe.model_copy(update={"task": task, "training": training})


def open_settings(recipe: Recipe) -> set[str]:
    """Return the names of the settings that pilots vary, those with "auto"."""
    task = recipe.task
    names = {name for name in ("penalty", "l2") if getattr(task, name) == "auto"}
    if "l2" in names and task.l2_measure is None:
        names.add("l2_measure")
    if getattr(recipe.training, "table_rate", None) == "auto":
        names.add("table_rate")
    return names


def starts(recipe: Recipe, split: Split) -> list[PilotSettings]:
    """Return the formula's settings, then up to 15 others, spread evenly by a Sobol sequence.

    All settings vary together, because the best values depend on each other. λ ranges from an
    eighth of the formula's value to four times, l2 from a quarter to eight times.
    """
    strengths, rate = strengths_of(recipe, split.training), rate_of(recipe)
    formula = PilotSettings(strengths.penalty[0], strengths.l2, strengths.l2_measure, rate)
    candidates, names = [formula], open_settings(recipe)
    engine = torch.quasirandom.SobolEngine(4)  # type: ignore[no-untyped-call]
    points = engine.draw(16)[1:]  # the first is a corner
    for l2, measure, penalty, rate in points.tolist():
        values: dict[str, Any] = {
            "l2": formula.l2 * 2 ** (5 * l2 - 2),
            "l2_measure": formula.l2_measure if measure < 0.5 else OTHER[formula.l2_measure],
            "penalty": formula.penalty * 2 ** (5 * penalty - 3),
            "table_rate": formula.table_rate * (0.5, 1.0, 2.0)[int(3 * rate)],
        }
        settings = replace(formula, **{k: v for k, v in values.items() if k in names})
        if settings not in candidates:
            candidates.append(settings)
    return candidates


def with_more_selection(split: Split) -> Split:
    """Return the split with some training pairs moved to the selection pairs, and without test
    pairs. Small data has so few selection pairs that they alone would mostly reward luck."""
    corpus = split.training
    order = torch.randperm(len(corpus), generator=torch.Generator().manual_seed(0))
    moved, rest = order.tensor_split([int(HELD_OUT * len(corpus))])
    training = corpus.restrict(rest.sort().values)
    rows = {
        "query": training.queries.vocabulary.rows(corpus.queries.vocabulary.keys),
        "candidate": training.candidates.vocabulary.rows(corpus.candidates.vocabulary.keys),
    }
    # Row -1, a candidate that is not in the training data, stays -1.
    rows["candidate"] = torch.cat([rows["candidate"], torch.tensor([-1])])
    query, candidate = corpus.column("query")[moved], corpus.column("candidate")[moved]
    selection = RowPairs(
        rows["query"][torch.cat([split.selection.query, query])],
        rows["candidate"][torch.cat([split.selection.candidate, candidate])],
    )
    trained = RowPairs(training.column("query"), training.column("candidate"))
    selection = selection.where((selection.query >= 0) & ~among(selection, trained))
    return replace(split, training=training, selection=selection, test=RowPairs.none(), final=None)


def wants_pilots(recipe: Recipe, split: Split) -> bool:
    """Return whether pilots choose settings before training, see `run_pilots`."""
    task, training = recipe.task, recipe.training
    return (
        "auto" in (task.l2, task.penalty)
        and task.needs_penalty
        and recipe.model.kind == "factorization"
        and not recipe.model.normalize
        and training.budget is None
        # Without early stopping, pilots would be compared by how fast they learn.
        and 0 < training.patience < training.epochs
        and len(split.training) <= MOST_PAIRS
        and len(split.selection) > 0
    )
