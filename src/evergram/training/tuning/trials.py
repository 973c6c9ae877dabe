"""Train a recipe with many values of its keys, and keep the best by the selection pairs."""

from __future__ import annotations

import math
import random
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import Timeout

from evergram.atomic_files import file_lock, make_folder, write_text
from evergram.data.corpus import Corpus
from evergram.data.split import Split
from evergram.errors import DataError, RecipeError, TrainingError
from evergram.training.build import Companions, pick_device
from evergram.training.callbacks import Callback, Point
from evergram.training.corpora import corpus_for, split_for, with_selecting_metric
from evergram.training.fit import RunContext, Trained, ends_after, fit_encoder
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.values import copied, overridden, resolve_paths, toml_of, value_of
from evergram.training.resuming import Journal, difference, run_identity
from evergram.training.tuning.search_space import KeyRange, SearchSpace, default_space

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as Proposal

    from evergram.training.loop import Trainer

UNTESTED = "A search of values looks at no test pair."
TABLES = ("model", "task", "prior", "gramian", "training")
# What a trial is judged by, and what it never does.
FIXED = ("training.metric", "training.refit")
NAME, LOCK = "trials.jsonl", ".lock"
# The value of a key as JSON holds it: a number, or a choice as TOML writes it.
Value = float | int | str
STATES = ("finished", "pruned", "failed")
# Trials that are not pruned, at first: a median of fewer says little.
UNPRUNED = 4
POPULARITY = "model.popularity"
# The largest number of combinations that are searched without repetition.
FEW = 4096


@dataclass(frozen=True)
class Trial:
    """One training of a search, as it ended.

    Args:
        state: "pruned" is behind the median of earlier trials.
        value: the best of its selection metric, where "auto" chooses γ with the γ that it chose;
            None if it failed.
        best_epoch: the one with that value.
        seconds: of training, without evaluations.
        history: epoch and metric of each evaluation; where "auto" chooses γ, at γ = 0.
        error: why it failed, one sentence.
    """

    number: int
    values: Mapping[str, Value]
    state: Literal["finished", "pruned", "failed"]
    value: float | None = None
    epochs: int = 0
    best_epoch: int = 0
    seconds: float = 0.0
    history: Sequence[tuple[int, float]] = field(default_factory=list)
    error: str = ""

    @property
    def overrides(self) -> list[str]:
        return overrides_of(self.values)

    def as_json(self) -> dict[str, Any]:
        """Return all of it, with choices, which are texts as TOML writes them, as values."""
        values = {k: value_of(v) if isinstance(v, str) else v for k, v in self.values.items()}
        return {**asdict(self), "values": values}


@dataclass(frozen=True)
class Tuned:
    """The trials of a search, in their order; `ended` is "trials", "minutes", "interrupted", or
    "exhausted": there were no other values."""

    recipe: Recipe
    trials: Sequence[Trial]
    ended: str

    @property
    def ranked(self) -> list[Trial]:
        """All trials, best first: the finished ones, then the pruned, then the failed."""
        return sorted(self.trials, key=lambda t: (STATES.index(t.state), -(t.value or 0), t.number))

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
            "best": self.best.as_json(),
            "trials": [trial.as_json() for trial in self.ranked],
        }


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
        space: of values; or its texts, as in `SearchSpace.parse`; None is `default_space`.
        folder: keeps each trial as it ends; the same search in the same folder goes on.
        corpus: None reads the one that the recipe names.
        trials: in all, those in the folder included.
        minutes: of wall-clock time, after which the running trial is dropped; None sets no limit.
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
    if not isinstance(space, SearchSpace):
        space = SearchSpace.parse(space) if space else default_space(recipe)
    refuse_fixed(space)
    space = space.checked(recipe.model_dump())
    ends = ends_after(minutes)
    split = split_for(recipe, corpus_for(recipe, corpus), 0).without_test(UNTESTED)
    shown = Progress.of_choice(progress)
    recipe, _ = with_selecting_metric(recipe, split, shown)
    identity = run_identity(recipe.model_dump_json(), 0, split, Companions(), "tune")
    chosen = pick_device(device, recipe.training.tables)
    context = RunContext(chosen, shown, warns=False, ends=ends)
    with claimed(folder):
        journal = _journal(folder, identity, space)
        ended = _search(recipe, split, space, context, journal, trials)
    ran = _trials(journal)
    if not any(trial.state == "finished" for trial in ran):
        raise TrainingError(_nothing(ran, ended))
    return Tuned(recipe, ran, ended)


def overrides_of(values: Mapping[str, Value]) -> list[str]:
    """Return values as overrides of a recipe, "table.key=value" each."""
    return [f"{k}={v if isinstance(v, str) else repr(v)}" for k, v in values.items()]


def with_values(recipe: Recipe, values: Mapping[str, Value]) -> Recipe:
    """Return the recipe with a trial's values. Raises: RecipeError: they do not go together."""
    return type(recipe).of(recipe.model_dump(), overrides_of(values), source="The trial")


def refuse_fixed(space: SearchSpace) -> None:
    """Raises: RecipeError: a key decides what trials are judged by, or on which data."""
    for one in space.ranges:
        table, _, name = one.key.partition(".")
        if not name or table not in TABLES or one.key in FIXED:
            raise RecipeError(
                f"The search over {one.key} would compare trials that are judged differently; "
                f"search over keys of {', '.join(TABLES)}, but not {' or '.join(FIXED)}."
            )


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other processes from searching in a folder.

    Raises: RecipeError: another process searches there. TrainingError: it cannot be written.
    """
    lock = file_lock(folder / LOCK, timeout=0)
    try:
        make_folder(folder)
        lock.acquire()
    except Timeout:
        raise RecipeError(
            f"Another process searches in {folder}; wait for it, or give another folder."
        ) from None
    except OSError as error:
        raise TrainingError(
            f"The trials cannot be kept in {folder}: {error.strerror or error}; make room there, "
            "or choose another folder."
        ) from error
    try:
        yield
    finally:
        # Removed while it is held: afterwards it may be another process's lock.
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()


def _journal(folder: Path, identity: dict[str, str], space: SearchSpace) -> Journal:
    """Return the folder's trials. Raises: RecipeError: they are of another search."""
    head = {"identity": identity, "space": [asdict(one) for one in space.ranges]}
    journal = Journal(folder / NAME, head)
    try:
        found = journal.read()
        what = difference(identity, found["identity"])
        if not what and journal.head["space"] != found["space"]:
            what = "other keys or values to search over"
        _trials(journal)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(
            f"{journal.path} is not a journal of trials ({error}); give another folder, or remove "
            "it."
        ) from None
    if what:
        raise RecipeError(f"{folder} has the trials of {what}; give another folder, or remove it.")
    return journal


def _trials(journal: Journal) -> list[Trial]:
    trials = []
    for line in journal.lines:
        history = [(int(epoch), float(value)) for epoch, value in line["history"]]
        trials.append(Trial(**{**line, "history": history}))
        STATES.index(trials[-1].state)
    return trials


def _search(
    recipe: Recipe,
    split: Split,
    space: SearchSpace,
    context: RunContext,
    journal: Journal,
    count: int,
) -> str:
    """Run trials until there are `count`. Return what ended the search."""
    try:
        while len(earlier := _trials(journal)) < count:
            proposal = propose(space, earlier, recipe.seed)
            if proposal is None:
                return "exhausted"
            if context.ends is not None and time.monotonic() >= context.ends:
                return "minutes"
            number, metric = len(earlier) + 1, recipe.training.metric
            callbacks = [Pruning(proposal, metric)] if comparable(space) else []
            own = replace(context, callbacks=callbacks, title=f"trial {number}")
            values: dict[str, Value] = dict(proposal.params)
            try:
                trained = fit_encoder(with_values(recipe, values), split, 0, own)
                if trained.ended == "minutes":
                    return "minutes"
                trial = _measured(number, values, trained, metric)
            except (TrainingError, RecipeError, DataError) as error:
                trial = Trial(number, values, "failed", error=str(error))
            journal.add(asdict(trial))
    except KeyboardInterrupt:
        return "interrupted"
    return "trials"


def _measured(number: int, values: dict[str, Value], trained: Trained, metric: str) -> Trial:
    """Return a trial that ended; its value is that of the model which `train` would publish."""
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
    failed = [f"trial {t.number} failed: {t.error.rstrip('.')}" for t in trials if t.error][:1]
    reasons = "; ".join(filter(None, [why, *failed]))
    return f"No trial of the search has finished, so there is no best one: {reasons}."


def comparable(space: SearchSpace) -> bool:
    """Return whether trials can be pruned by comparing their evaluations.

    With `model.popularity` = "auto" these are at γ = 0, and γ is chosen in the end: compared with
    trials that have their γ from the start, such a trial would be ended too early.
    """
    ends = [end.strip("\"'") for r in space.ranges if r.key == POPULARITY for end in r.ends()]
    return "auto" not in ends or set(ends) == {"auto"}


def propose(space: SearchSpace, earlier: Sequence[Trial], seed: int) -> Proposal | None:
    """Return Optuna's proposal after these trials, by its tree-structured Parzen estimator.

    It is a function of the arguments, so that a search that was interrupted proposes what an
    undisturbed one would. Values that were tried already are replaced by others, drawn at random,
    if the space has at most `FEW`; None if there are no others.

    Raises: RecipeError: Optuna is not installed.
    Source: Bergstra et al., *Algorithms for hyper-parameter optimization*, NeurIPS 2011.
    """
    ranges = {one.key: _distribution(one) for one in space.ranges}
    study = _study(random.Random(f"{seed}/{len(earlier)}").getrandbits(32))
    study.add_trials([_frozen(trial, ranges) for trial in earlier])
    proposal = study.ask(ranges)
    tried = [dict(trial.values) for trial in earlier]
    every = space.combinations(FEW) if proposal.params in tried else None
    if every is None:
        return proposal
    untried = [values for values in every if values not in tried]
    if not untried:
        return None
    study.enqueue_trial(random.Random(f"{seed}/{len(earlier)}/other").choice(untried))
    return study.ask(ranges)


class Pruning(Callback):
    """Ends a run whose best value so far is below the median of the earlier trials at that epoch,
    which Optuna's proposal knows."""

    def __init__(self, proposal: Proposal, metric: str) -> None:
        self.proposal = proposal
        self.metric = metric
        self.behind: bool = False

    def on_evaluation(self, at: Point, record: Mapping[str, float]) -> None:
        self.proposal.report(record[self.metric], int(record["epoch"]))
        self.behind = self.proposal.should_prune()

    def stop(self, run: Trainer) -> str:
        return "pruned" if self.behind else ""


def _study(seed: int) -> Study:
    """Return an empty study."""
    try:
        import optuna
    except ImportError:
        raise RecipeError(
            "A search needs Optuna, which is not installed: pip install 'evergram[tune]'."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED),
    )


def _distribution(one: KeyRange) -> BaseDistribution:
    from optuna import distributions as of

    if one.low is None or one.high is None:
        return of.CategoricalDistribution(one.choices)
    if isinstance(one.low, int) and isinstance(one.high, int):
        return of.IntDistribution(one.low, one.high, log=one.log)
    return of.FloatDistribution(float(one.low), float(one.high), log=one.log)


def _frozen(trial: Trial, ranges: dict[str, BaseDistribution]) -> FrozenTrial:
    """Return an earlier trial for Optuna."""
    from optuna.trial import TrialState, create_trial

    states = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
    return create_trial(
        state=states[STATES.index(trial.state)],
        value=trial.value if trial.state == "finished" else None,
        params=dict(trial.values),
        distributions=ranges,
        intermediate_values=dict(trial.history),
    )


FIRST_LINE = "# Written by evergram tune: the comments of {} are not kept, its paths are absolute."


def write_best(path: Path, source: Path, overrides: Sequence[str]) -> None:
    """Write the recipe in `source` with overrides set in it; comments are lost, paths absolute.

    Raises: RecipeError: the file that was written would not be the same recipe; it is not kept.
    """
    values = copied(tomllib.loads(source.read_text()))
    resolve_paths(values, source.parent)
    wanted = Recipe.load(source, overrides)
    values = wanted.written_of(overridden(values, overrides))
    text = f"{FIRST_LINE.format(source.name)}\n{toml_of(values)}"
    if Recipe.of(tomllib.loads(text), source=str(path)) != wanted:
        raise RecipeError(f"The best values cannot be written to {path} as a recipe.")
    write_text(path, text.rstrip("\n"))
