"""Choose what "auto" leaves open by short trainings, where the data is small enough for several.

A formula of the data's size cannot see how much of it is noise: on 9,000 reviews four times its l2
has 1.3 times its Recall@20. Small data is where that happens, and where it is cheap to find out.
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

# Training pairs up to which a training takes seconds.
MOST_PAIRS = 200_000
# Settings that are tried, and sweeps of the solver for each: the order of settings hardly changes
# afterwards.
PILOTS, PILOT_SWEEPS = 8, 5
# Share of the time until a run's limit that pilots may take.
MOST_TIME = 0.3
# Share of the training pairs that judge pilots, in addition to the selection pairs.
HELD_OUT = 0.1
# A smaller gain is no reason to depart from the formula.
LEAST_GAIN = 1.005
# The measures of l2. The other one is the same for an entity of average count; less for rare ones,
# more for frequent ones.
OTHER = {"penalty": "examples", "examples": "penalty"}


@dataclass
class Pilots:
    """The recipe with the numbers that pilots chose, and λ, l2, its measure, table rate and
    selection metric of each pilot, in their order."""

    recipe: Recipe
    tried: list[dict[str, float | str]] = field(default_factory=list)


def run_pilots(recipe: Recipe, split: Split, version: int, context: RunContext) -> Pilots:
    """Return the recipe with the best l2 and λ of some short trainings, by selection pairs and a
    tenth of the training pairs; no test pair is looked at.

    A pilot is a few sweeps of the solver where it can minimise the objective, and version 0 is then
    trained by it, too, unless the recipe says otherwise. Else a pilot is a whole training by the
    recipe's steps, and the tables' rate is chosen as well.

    The recipe is returned as it is unless `wants_pilots`.
    """
    if not wants_pilots(recipe, split):
        return Pilots(recipe)
    training = recipe.training
    sweeps = training.swept(epochs=PILOT_SWEEPS, evaluate_every=PILOT_SWEEPS, patience=0)
    tried_by = recipe.model_copy(update={"training": sweeps})
    run = OF_A_RUN - ({Trait.ONE_PROCESS} if context.collectives.size > 1 else set())
    unmet = FitSettings.of(tried_by, split.training, version).unmet(run)
    if solves := not unmet and training.tables != "mapped":
        # Upgrades may train a transform with the model, which the solver cannot.
        by_default = recipe.gramian == type(recipe).model_fields["gramian"].default
        solves = version == 0 and training.may_sweep and by_default
    else:
        tried_by = recipe
    context.progress.say(
        f"{PILOTS} short trainings (pilots) choose task.penalty and task.l2 first; numbers "
        "for both in the recipe leave them out."
    )
    judged, metric = with_more_selection(split), training.metric
    ends = context.share_of_time(MOST_TIME)
    tried: list[dict[str, float | str]] = []

    def measure(settings: PilotSettings) -> float:
        """Train a pilot; −∞, so that the best so far stays, if it diverges or time is over."""
        over = bool(tried) and ends is not None and time.monotonic() > ends
        # The first process alone has a limit; all train the same pilots.
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
            history = fit_encoder(settings.within(tried_by), judged, version, quiet).history
        except TrainingError:
            if not tried:
                raise
            return -math.inf
        value = max(record[metric] for record in history)
        tried.append({**asdict(settings), metric: value})
        context.progress.say(f"Pilot {len(tried)} of at most {PILOTS}: {metric} {value:.4f}.")
        return value

    best, *others = starts(tried_by, split)
    most = measure(best)
    for settings in others[: PILOTS - 1]:
        value = measure(settings)
        if value > LEAST_GAIN * most:
            best, most = settings, value
    chosen = best.within(recipe)
    if solves:
        chosen = chosen.model_copy(update={"training": chosen.training.swept()})
    return Pilots(chosen, tried)


@dataclass(frozen=True)
class PilotSettings:
    """Numbers in the place of "auto"."""

    penalty: float
    l2: float
    l2_measure: str
    table_rate: float

    def within(self, recipe: Recipe) -> Recipe:
        """Return the recipe with these numbers."""
        # A λ for each measure stays as the recipe has it: "auto" is one λ.
        penalty = [self.penalty] if recipe.task.penalty == "auto" else recipe.task.penalty
        strengths = {"penalty": penalty, "l2": self.l2, "l2_measure": self.l2_measure}
        task = recipe.task.model_copy(update=strengths)
        training: Training = recipe.training
        if isinstance(training, StepSettings) and self.table_rate:  # sweeps have none
            training = training.model_copy(update={"table_rate": self.table_rate})
        return recipe.model_copy(update={"task": task, "training": training})


def open_settings(recipe: Recipe) -> set[str]:
    """Return the settings that the recipe leaves to "auto"."""
    task = recipe.task
    found = {name for name in ("penalty", "l2") if getattr(task, name) == "auto"}
    if "l2" in found and task.l2_measure is None:
        found.add("l2_measure")
    if getattr(recipe.training, "table_rate", None) == "auto":
        found.add("table_rate")
    return found


def starts(recipe: Recipe, split: Split) -> list[PilotSettings]:
    """Return the formula's settings, then up to 15 others spread evenly around them, as single
    steps do not lead from what suits one measure of l2 or one rate to what suits another.

    λ is between an eighth and four times the formula's, l2 between a quarter and eight times.
    """
    strengths, rate = strengths_of(recipe, split.training), rate_of(recipe)
    formula = PilotSettings(strengths.penalty[0], strengths.l2, strengths.l2_measure, rate)
    found, choices = [formula], open_settings(recipe)
    engine = torch.quasirandom.SobolEngine(4)  # type: ignore[no-untyped-call]
    points = engine.draw(16)[1:]  # the first is a corner
    for l2, measure, penalty, rate in points.tolist():
        values: dict[str, Any] = {
            "l2": formula.l2 * 2 ** (5 * l2 - 2),
            "l2_measure": formula.l2_measure if measure < 0.5 else OTHER[formula.l2_measure],
            "penalty": formula.penalty * 2 ** (5 * penalty - 3),
            "table_rate": formula.table_rate * (0.5, 1.0, 2.0)[int(3 * rate)],
        }
        start = replace(formula, **{k: v for k, v in values.items() if k in choices})
        if start not in found:
            found.append(start)
    return found


def with_more_selection(split: Split) -> Split:
    """Return the split in which some training pairs select, too, and none is tested: by the few
    selection pairs of small data, the best of two dozen settings is mostly the luckiest."""
    corpus = split.training
    order = torch.randperm(len(corpus), generator=torch.Generator().manual_seed(0))
    held, rest = order.tensor_split([int(HELD_OUT * len(corpus))])
    training = corpus.restrict(rest.sort().values)
    rows = {
        "query": training.queries.vocabulary.rows(corpus.queries.vocabulary.keys),
        "candidate": training.candidates.vocabulary.rows(corpus.candidates.vocabulary.keys),
    }
    # A candidate that training never saw stays -1.
    rows["candidate"] = torch.cat([rows["candidate"], torch.tensor([-1])])
    selection = RowPairs(
        rows["query"][torch.cat([split.selection.query, corpus.column("query")[held]])],
        rows["candidate"][torch.cat([split.selection.candidate, corpus.column("candidate")[held]])],
    )
    trained = RowPairs(training.column("query"), training.column("candidate"))
    selection = selection.where((selection.query >= 0) & ~among(selection, trained))
    return replace(split, training=training, selection=selection, test=RowPairs.none(), final=None)


def wants_pilots(recipe: Recipe, split: Split) -> bool:
    """Return whether short trainings choose settings first, see `run_pilots`."""
    task, training = recipe.task, recipe.training
    return (
        "auto" in (task.l2, task.penalty)
        and task.needs_penalty
        and recipe.model.kind == "factorization"
        and not recipe.model.normalize
        and training.budget is None
        # Trainings too short to end by themselves would be compared by their speed.
        and 0 < training.patience < training.epochs
        and len(split.training) <= MOST_PAIRS
        and len(split.selection) > 0
    )
