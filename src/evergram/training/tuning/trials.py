"""Train a recipe with many values of its keys, and keep the best by the selection pairs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergram.data.corpus import Corpus
from evergram.data.split import Split
from evergram.errors import DataError, RecipeError, TrainingError
from evergram.training.build import Companions, pick_device
from evergram.training.checkpoints.run_identity import RunIdentity
from evergram.training.corpora import corpus_for, split_for
from evergram.training.fit import RunContext, Trained, ends_after, fit_encoder
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.values import value_of
from evergram.training.selecting_metric import with_selecting_metric
from evergram.training.tuning.default_space import default_space
from evergram.training.tuning.proposals import (
    Pruning,
    Trial,
    Value,
    comparable,
    overrides_of,
    propose,
)
from evergram.training.tuning.search_space import SearchSpace
from evergram.training.tuning.trial_journal import TrialJournal, claimed

if TYPE_CHECKING:
    from optuna.trial import Trial as Proposal

UNTESTED = "A search of values looks at no test pair."
TABLES = ("model", "task", "prior", "gramian", "training")
# What a trial is judged by, and what it never does.
FIXED = ("training.metric", "training.refit")
# Choices that need the column of interactions that they are named by.
BY_COLUMN = (("task.sparse", "weight"), ("task.target", "value"))


@dataclass(frozen=True)
class Tuned:
    """The trials of a search.

    Args:
        recipe: as it was given.
        trials: in their order.
        ended: "trials", "minutes", "interrupted", or "exhausted": there were no other values.
    """

    recipe: Recipe
    trials: Sequence[Trial]
    ended: str

    @property
    def ranked(self) -> list[Trial]:
        """All trials, best first: the finished ones, then the pruned, then the failed."""
        order = ("finished", "pruned", "failed")
        return sorted(self.trials, key=lambda t: (order.index(t.state), -(t.value or 0), t.number))

    @property
    def best(self) -> Trial:
        """The finished trial of the highest value, the first of those that are equal."""
        return self.ranked[0]

    @property
    def best_recipe(self) -> Recipe:
        """The recipe with the best trial's values."""
        return with_values(self.recipe, self.best.values)

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.recipe.training.metric,
            "ended": self.ended,
            "best": _as_json(self.best),
            "trials": [_as_json(trial) for trial in self.ranked],
        }


def _as_json(trial: Trial) -> dict[str, Any]:
    """Return a trial; choices, which are texts as TOML writes them, as the values they are."""
    values = {k: value_of(v) if isinstance(v, str) else v for k, v in trial.values.items()}
    return {**asdict(trial), "values": values}


def tune(
    recipe: Recipe,
    space: SearchSpace | Sequence[str] | None,
    folder: Path,
    corpus: Corpus | None = None,
    *,
    trials: int = 20,
    minutes: float | None = None,
    device: str = "auto",
    progress: Progress | bool = True,
) -> Tuned:
    """Train version 0 of a recipe with many values of its keys, and rank them by the best
    `training.metric` of each on the selection pairs. No test pair is looked at, and nothing is
    refitted.

    Args:
        space: of values; or its texts, as of `SearchSpace.parse`; none is `default_space`.
        folder: keeps each trial as it ends; the same search in the same folder goes on.
        corpus: None reads the one that the recipe names.
        trials: so many in all, those in the folder included.
        minutes: of wall-clock time, after which the running trial is dropped. None sets no limit.
        progress: whether steps and evaluations are shown on stderr.
    Returns: also after Ctrl-C, if a trial has finished.
    Raises: RecipeError: a key, a value or a limit is not allowed, the folder has another search or
        a running one, or Optuna is missing. TrainingError: no trial has finished. DataError.
    """
    if trials < 1 or not (minutes is None or 0 < minutes < math.inf):
        raise RecipeError(
            f"--trials is {trials} and --minutes {minutes}; give one trial or more, and minutes "
            "above 0 or none."
        )
    space = _space(recipe, space)
    refuse_fixed(space)
    space = space.checked(recipe.model_dump())
    ends = ends_after(minutes)
    split = split_for(recipe, corpus_for(recipe, corpus), 0).without_test(UNTESTED)
    shown = Progress.of_choice(progress)
    recipe, _ = with_selecting_metric(recipe, split, shown)
    _check_ends(recipe, space, split.training)
    identity = RunIdentity.of(recipe.model_dump_json(), 0, split, Companions(), "tune")
    chosen = pick_device(device, recipe.training.tables)
    context = RunContext(chosen, shown, warns=False, ends=ends)
    search = _Search(recipe, split, space, context)
    with claimed(folder):
        journal = TrialJournal(folder, identity, space)
        ended = search.run(journal, trials)
    if not any(trial.state == "finished" for trial in journal.trials):
        raise TrainingError(_nothing(journal.trials, ended))
    return Tuned(recipe, journal.trials, ended)


def with_values(recipe: Recipe, values: Mapping[str, Value]) -> Recipe:
    """Return the recipe with a trial's values. Raises: RecipeError: they do not go together."""
    return Recipe.of(recipe.model_dump(), overrides_of(values), source="The trial")


def refuse_fixed(space: SearchSpace) -> None:
    """Raises: RecipeError: a key decides what trials are judged by, or on which data."""
    for one in space.ranges:
        table, _, name = one.key.partition(".")
        if (name and table not in TABLES) or not name or one.key in FIXED:
            raise RecipeError(
                f"The search over {one.key} would compare trials that are judged differently; "
                f"search over keys of {', '.join(TABLES)}, but not {' or '.join(FIXED)}."
            )


def _check_ends(recipe: Recipe, space: SearchSpace, corpus: Corpus) -> None:
    """Raises: RecipeError: an end of a range, or a choice, is not for this corpus."""
    for one in space.ranges:
        # Only a task is made of the corpus's sizes.
        for end in one.ends() if one.key.startswith("task.") else ():
            try:
                if (one.key, end) in BY_COLUMN:
                    corpus.column(str(end))
                with_values(recipe, {one.key: end}).task.chosen.build(corpus)
            except DataError as error:
                raise RecipeError(f"The search over {one.key}={end}: {error}") from None


@dataclass(frozen=True)
class _Search:
    recipe: Recipe
    split: Split
    space: SearchSpace
    context: RunContext

    def run(self, journal: TrialJournal, trials: int) -> str:
        """Run trials until there are so many. Returns: what ended it."""
        ends = self.context.ends
        try:
            while len(journal.trials) < trials:
                proposal = propose(self.space, journal.trials, self.recipe.seed)
                if proposal is None:
                    return "exhausted"
                late = ends is not None and time.monotonic() >= ends
                trial = None if late else self.next(proposal, journal.trials)
                if trial is None:
                    return "minutes"
                journal.add(trial)
        except KeyboardInterrupt:
            return "interrupted"
        return "trials"

    def next(self, proposal: Proposal, earlier: Sequence[Trial]) -> Trial | None:
        """Return the trial after these, as it ended; None if the time was over first."""
        number, metric = len(earlier) + 1, self.recipe.training.metric
        values: dict[str, Value] = dict(proposal.params)
        callbacks = [Pruning(proposal, metric)] if comparable(values, self.space) else []
        context = replace(self.context, callbacks=callbacks, title=f"trial {number}")
        try:
            chosen = with_values(self.recipe, values)
            trained = fit_encoder(chosen, self.split, 0, context)
        except (TrainingError, RecipeError, DataError) as error:
            return Trial(number, values, "failed", error=str(error))
        if trained.ended == "minutes":
            return None
        return _measured(number, values, trained, metric)


def _space(recipe: Recipe, space: SearchSpace | Sequence[str] | None) -> SearchSpace:
    if isinstance(space, SearchSpace):
        return space
    return SearchSpace.parse(space) if space else default_space(recipe)


def _measured(number: int, values: dict[str, Value], trained: Trained, metric: str) -> Trial:
    """Return a trial that ended, whose value is that of the model which `train` would publish."""
    history = [(int(record["epoch"]), float(record[metric])) for record in trained.history]
    best = next((value for epoch, value in history if epoch == trained.best_epoch), math.nan)
    if trained.popularity is not None and trained.popularity.tried:
        # Evaluations are at γ = 0 where γ is chosen in the end.
        best = max(tried[metric] for tried in trained.popularity.tried)
    if not math.isfinite(best):
        return Trial(number, values, "failed", error=f"{metric} was never measured.")
    return Trial(
        number,
        values,
        "pruned" if trained.ended == "pruned" else "finished",
        best,
        epochs=history[-1][0],
        best_epoch=trained.best_epoch,
        seconds=trained.seconds,
        history=history,
    )


def _nothing(trials: Sequence[Trial], ended: str) -> str:
    why = {"minutes": "the minutes were over", "interrupted": "it was interrupted"}.get(ended, "")
    failed = next(
        (f"trial {t.number} failed: {t.error.rstrip('.')}" for t in trials if t.error), ""
    )
    reasons = "; ".join(part for part in (why, failed) if part)
    return f"No trial of the search has finished, so there is no best one: {reasons}."
