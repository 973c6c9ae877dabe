"""Search the values of a recipe's keys: train with many of them, and keep the best by the selection
pairs."""

from __future__ import annotations

import json
import math
import random
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

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
from evergram.training.resuming import difference, run_identity

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial as Proposal

    from evergram.training.loop import Trainer

_FORMS = (
    "write KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=VALUE,VALUE,…, as in "
    "task.penalty=log:1e-2..1e2, model.dim=16..128 or model.dim=32,64,128"
)
# The default search. A softmax over all candidates needs no penalty: its temperature decides most.
OF_SOFTMAX = ("task.temperature=log:0.03..1.0", "task.push=0.8..1.5")
OF_OTHERS = ("task.penalty=log:0.01..10.0", "task.l2=log:1e-5..0.1")
# Only for a recipe that has neighbours, which take memory by the size of the catalogue.
OF_NEIGHBOURS = "task.neighbour_share=0.02..0.5"
# A step of Adam is as long as the rate; other optimisers divide the rate by past gradients.
RATES = ("training.table_rate=log:0.01..1.0", "training.layer_rate=log:1e-4..0.03")
RATES_OF_ADAM = ("training.table_rate=log:0.001..0.1", RATES[1])


@dataclass(frozen=True)
class KeyRange:
    """The values of one key: from `low` to `high`, both included, or one of `choices`.

    Args:
        key: "table.key".
        low, high: integers or floats; None where there are choices.
        log: whether the search is uniform in the logarithm.
        choices: values as TOML writes them, or bare words.
    """

    key: str
    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    choices: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the range in a text such as "model.dim=16..128", "task.penalty=log:0.1..10" or
        "model.dim=32,64".

        Raises: RecipeError.
        """
        key, _, values = (part.strip() for part in text.partition("="))
        if not (key and values):
            raise RecipeError(f"{text!r} has no key or no values; {_FORMS}.")
        log, ends = values.startswith("log:"), values.removeprefix("log:")
        if log or ".." in ends:
            first, _, last = ends.partition("..")
            low, high = _number(text, first), _number(text, last)
            if low >= high or (log and low <= 0):
                raise RecipeError(
                    f"{text!r} goes from {low} to {high}; write the smaller end first, and start "
                    "a range by logarithm above 0."
                )
            return cls(key, low, high, log)
        choices = tuple(choice.strip() for choice in values.split(","))
        if not all(choices) or len(set(choices)) < len(choices):
            raise RecipeError(f"{text!r} has an empty choice, or one twice; {_FORMS}.")
        return cls(key, choices=choices)

    def ends(self) -> tuple[str, ...]:
        """Return the values that bound this range, or all choices, as TOML writes them."""
        return self.choices or (repr(self.low), repr(self.high))

    def distribution(self) -> BaseDistribution:
        """Return the range as Optuna has it."""
        from optuna import distributions as of

        if self.low is None or self.high is None:
            return of.CategoricalDistribution(self.choices)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return of.IntDistribution(self.low, self.high, log=self.log)
        return of.FloatDistribution(float(self.low), float(self.high), log=self.log)


@dataclass(frozen=True)
class SearchSpace:
    """The ranges of all keys that a search may set."""

    ranges: tuple[KeyRange, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Return the space of several texts, each as in `KeyRange.parse`. Raises: RecipeError."""
        ranges = tuple(KeyRange.parse(text) for text in texts)
        keys = [one.key for one in ranges]
        for key in keys:
            if keys.count(key) > 1:
                raise RecipeError(f"The key {key} comes twice in the search; write it once.")
        return cls(ranges)

    def checked(self, values: Mapping[str, Any], folder: Path | None = None) -> Self:
        """Return the space for a recipe, which must allow both ends of each range and each choice.

        A range between integers becomes one of floats where the recipe's key takes floats.

        Args:
            values: of a recipe, as in `Recipe.of`.
            folder: where its relative paths start.
        Raises: RecipeError: a key is unknown or has no effect, or a value is not allowed.
        """
        ranges = []
        for one in self.ranges:
            for end in one.ends():
                override = f"{one.key}={end}"
                source = f"The search over {override}"
                Recipe.of(values, [override], folder=folder, source=source)
            if isinstance(one.low, int) and isinstance(one.high, int):
                try:
                    Recipe.of(values, [f"{one.key}={one.low + 0.5}"], folder=folder)
                    one = replace(one, low=float(one.low), high=float(one.high))
                except RecipeError:
                    pass
            ranges.append(one)
        return replace(self, ranges=tuple(ranges))


def default_space(recipe: Recipe) -> SearchSpace:
    """Return the default ranges of the keys that the recipe's task and model use.

    Raises: RecipeError: there are none.
    """
    texts = list(OF_SOFTMAX if recipe.task.kind == "softmax_all" else OF_OTHERS)
    if getattr(recipe.task, "neighbour_share", 0.0):
        texts.append(OF_NEIGHBOURS)
    texts += RATES_OF_ADAM if recipe.training.optimizer == "adam" else RATES
    used = [text for text in texts if _is_used(recipe, text)]
    if not used:
        raise RecipeError(f"This recipe uses no key that is searched by default; {_FORMS}.")
    return SearchSpace.parse(used)


def _is_used(recipe: Recipe, text: str) -> bool:
    try:
        SearchSpace.parse([text]).checked(recipe.model_dump())
    except RecipeError:
        return False
    return True


def _number(text: str, written: str) -> float | int:
    for kind in (int, float):
        try:
            value = kind(written)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    raise RecipeError(f"{text!r}: {written!r} is not a finite number; {_FORMS}.")


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
# Draws for values that no trial has had, after which there are none.
DRAWS = 200


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

    @classmethod
    def of_json(cls, line: Mapping[str, Any]) -> Self:
        """Return the trial of a journal's line. Raises: ValueError, TypeError, KeyError."""
        STATES.index(line["state"])
        history = [(int(epoch), float(value)) for epoch, value in line["history"]]
        return cls(**{**line, "history": history})

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
        journal = Journal(folder, identity, space)
        ended = _search(recipe, split, space, context, journal, trials)
    ran = journal.trials
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


class Journal:
    """The trials of a folder that have ended, as JSON lines, after one that names the search.

    Raises: RecipeError: they are of another search.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str], space: SearchSpace) -> None:
        self.path: Path = folder / NAME
        head = {"identity": identity, "space": [asdict(one) for one in space.ranges]}
        self.lines: list[str] = [json.dumps(head)]
        self.trials: list[Trial] = []
        if not self.path.is_file():
            return
        try:
            first, *lines = map(json.loads, self.path.read_text().splitlines())
            what = difference(identity, first["identity"])
            if not what and json.loads(self.lines[0])["space"] != first["space"]:
                what = "other keys or values to search over"
            self.trials += map(Trial.of_json, lines)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecipeError(
                f"{self.path} is not a journal of trials ({error}); give another folder, or remove "
                "it."
            ) from None
        if what:
            raise RecipeError(
                f"{folder} has the trials of {what}; give another folder, or remove it."
            )
        self.lines += map(json.dumps, lines)

    def add(self, trial: Trial) -> None:
        """Keep a trial. Raises: TrainingError: the file cannot be written."""
        self.trials.append(trial)
        self.lines.append(json.dumps(asdict(trial)))
        try:
            write_text(self.path, "\n".join(self.lines))
        except OSError as error:
            raise TrainingError(
                f"{self.path} cannot be written: {error.strerror}; make room there, or choose "
                "another folder."
            ) from error


def _search(
    recipe: Recipe,
    split: Split,
    space: SearchSpace,
    context: RunContext,
    journal: Journal,
    count: int,
) -> str:
    """Run trials until there are `count`. Return what ended the search."""
    # With `model.popularity` = "auto" evaluations are at γ = 0, and γ is chosen in the end.
    prunes = POPULARITY not in (one.key for one in space.ranges)
    try:
        while len(journal.trials) < count:
            proposal = propose(space, journal.trials, recipe.seed)
            if proposal is None:
                return "exhausted"
            if context.ends is not None and time.monotonic() >= context.ends:
                return "minutes"
            number, metric = len(journal.trials) + 1, recipe.training.metric
            callbacks = [Pruning(proposal, metric)] if prunes else []
            own = replace(context, callbacks=callbacks, title=f"trial {number}")
            values: dict[str, Value] = dict(proposal.params)
            try:
                trained = fit_encoder(with_values(recipe, values), split, 0, own)
                if trained.ended == "minutes":
                    return "minutes"
                trial = _measured(number, values, trained, metric)
            except (TrainingError, RecipeError, DataError) as error:
                trial = Trial(number, values, "failed", error=str(error))
            journal.add(trial)
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


def propose(space: SearchSpace, earlier: Sequence[Trial], seed: int) -> Proposal | None:
    """Return Optuna's proposal after these trials, by its tree-structured Parzen estimator.

    It is a function of the arguments, so that a search that was interrupted proposes what an
    undisturbed one would. Values that were tried already are replaced by others, drawn at random;
    None if there are no others.

    Raises: RecipeError: Optuna is not installed.
    Source: Bergstra et al., *Algorithms for hyper-parameter optimization*, NeurIPS 2011.
    """
    try:
        import optuna
    except ImportError:
        raise RecipeError(
            "A search needs Optuna, which is not installed: pip install 'evergram[tune]'."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ranges = {one.key: one.distribution() for one in space.ranges}
    draw = random.Random(f"{seed}/{len(earlier)}")
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=draw.getrandbits(32)),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED),
    )
    of_state = optuna.trial.TrialState
    states = dict(zip(STATES, (of_state.COMPLETE, of_state.PRUNED, of_state.FAIL), strict=True))
    for trial in earlier:
        study.add_trial(
            optuna.trial.create_trial(
                state=states[trial.state],
                value=trial.value if trial.state == "finished" else None,
                params=dict(trial.values),
                distributions=ranges,
                intermediate_values=dict(trial.history),
            )
        )
    tried = [dict(trial.values) for trial in earlier]
    proposal = study.ask(ranges)
    study.sampler = optuna.samplers.RandomSampler(draw.getrandbits(32))
    for _ in range(DRAWS):
        if proposal.params not in tried:
            return proposal
        proposal = study.ask(ranges)
    return None


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
