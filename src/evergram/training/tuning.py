"""Search for the best values of a recipe's keys on the selection pairs. An Optuna study proposes
values, prunes trials and stores them in a folder."""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import Timeout

from evergram.atomic_files import file_lock, make_folder, write_text
from evergram.data.corpus import Corpus
from evergram.data.split import Split
from evergram.errors import DataError, RecipeError, TrainingError
from evergram.training.build import (
    Companions,
    corpus_for,
    pick_device,
    split_for,
    with_selecting_metric,
)
from evergram.training.callbacks import Callback
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.recipe import copied, overridden, resolve_paths, toml_of, value_of
from evergram.training.resuming import difference, run_identity

try:
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
        distribution_to_json,
    )
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState
except ImportError:
    raise RecipeError(
        "A search needs Optuna, which is not installed: pip install 'evergram[tune]'."
    ) from None

if TYPE_CHECKING:
    from evergram.training.loop import Trainer

optuna.logging.set_verbosity(optuna.logging.WARNING)

_FORMS = (
    "write KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=VALUE,VALUE,…, as in "
    "task.penalty=log:1e-2..1e2, model.dim=16..128 or model.dim=32,64,128"
)
# The default search. A softmax over all candidates has no penalty; its temperature matters most.
OF_SOFTMAX = ("task.temperature=log:0.03..1.0", "task.push=0.8..1.5")
OF_OTHERS = ("task.penalty=log:0.01..10.0", "task.l2=log:1e-5..0.1")
# Adam's steps are about as long as the rate; Adagrad's shrink with past gradients.
RATES = ("training.table_rate=log:0.01..1.0", "training.layer_rate=log:1e-4..0.03")
RATES_OF_ADAM = ("training.table_rate=log:0.001..0.1", RATES[1])
TABLES = ("model", "task", "prior", "gramian", "training")
# Keys that must be the same in all trials.
FIXED = ("training.metric", "training.refit")
NAME, LOCK = "trials.jsonl", ".lock"
# Order of states in the ranking.
STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
# The first trials are not pruned, because a median of fewer is not meaningful.
UNPRUNED = 4
Values = CategoricalDistribution | IntDistribution | FloatDistribution
# After this many random draws without untried values, the search is exhausted.
DRAWS = 200


def parse_range(text: str) -> tuple[str, Values]:
    """Parse "model.dim=16..128", "a.b=log:.1..10" or "model.dim=32,64" into a key and its values;
    choices are written as in TOML. Raises: RecipeError."""
    key, _, values = (part.strip() for part in text.partition("="))
    log, ends = values.startswith("log:"), values.removeprefix("log:")
    try:
        if log or ".." in ends:
            low, high = map(float, ends.split(".."))
            if not (key and math.isfinite(high - low)):
                raise ValueError("a key and two finite numbers are needed")
            if re.fullmatch(r"[+-]?\d+\.\.[+-]?\d+", ends):
                return key, IntDistribution(int(low), int(high), log=log)
            return key, FloatDistribution(low, high, log=log)
        choices = tuple(choice.strip() for choice in values.split(","))
        if not (key and all(choices)) or len(set(choices)) < len(choices):
            raise ValueError("the key or a choice is empty, or a choice is repeated")
        return key, CategoricalDistribution(choices)
    except ValueError as error:
        raise RecipeError(f"{text!r}: {str(error).rstrip('.')}; {_FORMS}.") from None


def search_space(texts: Sequence[str], recipe: Recipe) -> dict[str, BaseDistribution]:
    """Return the values of each key, from texts as for `parse_range`. A range of integers becomes
    one of floats if the key allows them.

    Raises: RecipeError: a key is repeated or may not be searched, or the recipe does not allow an
        end of a range or a choice.
    """
    space: dict[str, BaseDistribution] = {}
    values = recipe.model_dump()
    for key, distribution in map(parse_range, texts):
        table, _, name = key.partition(".")
        if not name or table not in TABLES or key in FIXED or key in space:
            raise RecipeError(
                f"Cannot search over {key}: give keys of {', '.join(TABLES)}, each once, but not "
                f"{' or '.join(FIXED)}, which must be the same in all trials."
            )
        if isinstance(distribution, CategoricalDistribution):
            ends: Sequence[Any] = distribution.choices
        else:
            ends = (distribution.low, distribution.high)
        for end in ends:
            Recipe.of(values, [f"{key}={end}"], source=f"The search over {key}={end}")
        if isinstance(distribution, IntDistribution):
            low, high = distribution.low, distribution.high
            with suppress(RecipeError):
                Recipe.of(values, [f"{key}={low + 0.5}"])
                distribution = FloatDistribution(low, high, log=distribution.log)
        space[key] = distribution
    return space


def default_ranges(recipe: Recipe) -> list[str]:
    """Return the default ranges of the keys that have an effect in the recipe."""
    texts = list(OF_SOFTMAX if recipe.task.kind == "softmax_all" else OF_OTHERS)
    texts += RATES_OF_ADAM if recipe.training.optimizer == "adam" else RATES
    effective = []
    for text in texts:
        with suppress(RecipeError):
            search_space([text], recipe)
            effective.append(text)
    return effective


@dataclass(frozen=True)
class Tuned:
    """The trials of a search, in order; `ended` is "trials", "interrupted", or "exhausted" if all
    values were tried.

    A trial's `value` is its best selection metric; its `user_attrs` have `epochs`, `best_epoch`,
    `seconds` and `error`.
    """

    recipe: Recipe
    trials: Sequence[FrozenTrial]
    ended: str

    @property
    def ranked(self) -> list[FrozenTrial]:
        """All trials, best first: complete ones, then pruned ones, then failed ones."""
        return sorted(self.trials, key=lambda t: (STATES.index(t.state), -(t.value or 0), t.number))

    @property
    def best(self) -> FrozenTrial:
        return self.ranked[0]

    def as_json(self) -> dict[str, Any]:
        trials = [
            {
                "number": trial.number + 1,
                "values": {
                    k: value_of(v) if isinstance(v, str) else v for k, v in trial.params.items()
                },
                "state": trial.state.name.lower(),
                "value": trial.value,
                "history": list(trial.intermediate_values.items()),
                **trial.user_attrs,
            }
            for trial in self.ranked
        ]
        metric = self.recipe.training.metric
        return {"metric": metric, "ended": self.ended, "best": trials[0], "trials": trials}


def tune(
    recipe: Recipe,
    over: Sequence[str] | None,
    folder: Path,
    corpus: Corpus | None = None,
    *,
    trials: int = 20,
    device: str = "auto",
    progress: Progress | bool = True,
) -> Tuned:
    """Train version 0 of a recipe with different values of its keys, and rank the trials by their
    best `training.metric` on the selection pairs. It uses no test pairs and does not refit.

    Args:
        over: the keys and their values, as for `parse_range`; None is `default_ranges`.
        folder: stores each finished trial; repeating a search with the same folder continues it.
        corpus: None loads the recipe's data.
        trials: total number of trials, including those in the folder.
    Returns: the trials; after Ctrl-C those so far, if one is complete.
    Raises: RecipeError: a key or a value is not allowed, or the folder belongs to another search or
        another process. TrainingError: no trial is complete. DataError.
    """
    space = search_space(over or default_ranges(recipe), recipe)
    corpus = corpus_for(recipe, corpus)
    split = split_for(recipe, corpus, 0).without_test("A search uses no test pairs.")
    reporter = Progress.of_choice(progress)
    recipe, _ = with_selecting_metric(recipe, split, reporter)
    context = RunContext(pick_device(device, recipe.training.tables), reporter, warns=False)
    identity = run_identity(recipe.model_dump_json(), 0, split, Companions(), "tune")
    make_folder(folder)
    try:
        with file_lock(folder / LOCK, timeout=0):
            study = _study(folder, identity, space)
            ended = _search(recipe, split, space, context, study, trials)
    except Timeout:
        raise RecipeError(
            f"Another process is searching in {folder}; wait for it, or give another folder."
        ) from None
    tuned = Tuned(recipe, study.trials, ended)
    if not any(trial.state == TrialState.COMPLETE for trial in tuned.trials):
        errors = [f" Trial {t.number + 1}: {t.user_attrs['error']}" for t in tuned.trials]
        reason = "".join(errors[:1]) or " It was interrupted."
        raise TrainingError(f"No trial of the search is complete.{reason}")
    return tuned


def with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with a trial's values. Raises: RecipeError: they exclude each other."""
    return Recipe.of(recipe.model_dump(), overrides_of(values), source="The trial")


def overrides_of(values: Mapping[str, Any]) -> list[str]:
    """Return values as overrides of a recipe, "table.key=value"."""
    return [f"{key}={value}" for key, value in values.items()]


def _study(
    folder: Path, identity: Mapping[str, str], space: Mapping[str, BaseDistribution]
) -> optuna.Study:
    """Return the folder's study, or a new one. Raises: RecipeError: it is of another search."""
    path = folder / NAME
    path.touch()
    with path.open("r+b") as file:  # remove an incomplete last line
        file.truncate(file.read().rfind(b"\n") + 1)
    try:
        study = optuna.create_study(
            study_name="evergram",
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(path))),
            direction="maximize",
            load_if_exists=True,
        )
        attributes = study.user_attrs
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise RecipeError(
            f"{path} is not a journal of trials ({error!r}); give another folder, or remove it."
        ) from None
    space_json = {key: distribution_to_json(values) for key, values in space.items()}
    if not study.trials:
        study.set_user_attr("identity", dict(identity))
        study.set_user_attr("space", space_json)
    elif what := difference(identity, attributes["identity"]) or (
        "other keys or values to search over" if attributes["space"] != space_json else ""
    ):
        raise RecipeError(f"{folder} has trials of {what}; give another folder, or remove it.")
    return study


def _search(
    recipe: Recipe,
    split: Split,
    space: Mapping[str, BaseDistribution],
    context: RunContext,
    study: optuna.Study,
    count: int,
) -> str:
    """Run trials until there are `count`, storing each one. Return why the search ended."""
    metric = recipe.training.metric
    try:
        while (number := len(study.trials) + 1) <= count:
            proposal = propose(space, study.trials, recipe.seed)
            if proposal is None:
                return "exhausted"
            pruning = [Pruning(proposal, metric)]
            trial_context = replace(context, callbacks=pruning, title=f"trial {number}")
            facts = {"epochs": 0, "best_epoch": 0, "seconds": 0.0, "error": ""}
            values: dict[str, Any] = {"state": TrialState.FAIL}
            try:
                trial_recipe = with_values(recipe, proposal.params)
                trained = fit_encoder(trial_recipe, split, 0, trial_context)
                history = {int(r["epoch"]): float(r[metric]) for r in trained.history}
                best = trained.best_epoch
                if not math.isfinite(history.get(best, math.nan)):
                    raise TrainingError(f"{metric} was not measured.")
                pruned = trained.ended == "pruned"
                values = {
                    "state": TrialState.PRUNED if pruned else TrialState.COMPLETE,
                    "value": history[best],
                    "intermediate_values": history,
                }
                facts |= {"epochs": trained.history[-1]["epoch"], "best_epoch": best}
                facts["seconds"] = trained.seconds
            except (TrainingError, RecipeError, DataError) as error:
                facts["error"] = str(error)
            study.add_trial(
                optuna.trial.create_trial(
                    params=proposal.params, distributions=dict(space), user_attrs=facts, **values
                )
            )
    except KeyboardInterrupt:
        return "interrupted"
    return "trials"


def propose(
    space: Mapping[str, BaseDistribution], earlier: Sequence[FrozenTrial], seed: int
) -> optuna.Trial | None:
    """Return Optuna's next proposal after these trials, by its tree-structured Parzen estimator.

    It only depends on the arguments, so an interrupted search continues as if it had not been
    interrupted. Values that were tried already are replaced by random ones; None if there are none.

    Source: Bergstra et al., *Algorithms for hyper-parameter optimization*, NeurIPS 2011.
    """
    draw = random.Random(f"{seed}/{len(earlier)}")
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=draw.getrandbits(32)),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED),
    )
    study.add_trials(earlier)
    tried = [trial.params for trial in earlier]
    proposal = study.ask(dict(space))
    study.sampler = optuna.samplers.RandomSampler(draw.getrandbits(32))
    for _ in range(DRAWS):
        if proposal.params not in tried:
            return proposal
        proposal = study.ask(dict(space))
    return None


class Pruning(Callback):
    """Ends a run whose best value so far is below the earlier trials' median at that epoch."""

    def __init__(self, proposal: optuna.Trial, metric: str) -> None:
        self.proposal = proposal
        self.metric = metric
        self.behind: bool = False

    def on_evaluation(self, run: Trainer, record: Mapping[str, float]) -> None:
        self.proposal.report(record[self.metric], int(record["epoch"]))
        self.behind = self.proposal.should_prune()

    def stop(self, run: Trainer) -> str:
        return "pruned" if self.behind else ""


def write_best(path: Path, source: Path, overrides: Sequence[str]) -> None:
    """Write the recipe in `source` with overrides; comments are lost, and paths become absolute.

    Raises: RecipeError: the recipe cannot be written as TOML without changing it.
    """
    values = copied(tomllib.loads(source.read_text()))
    resolve_paths(values, source.parent)
    wanted = Recipe.load(source, overrides)
    tables = toml_of(wanted.written_of(overridden(values, overrides)))
    if Recipe.of(tomllib.loads(tables), source=str(path)) != wanted:
        raise RecipeError(f"The best values cannot be written to {path} as a recipe.")
    write_text(
        path,
        f"# Written by evergram tune from {source.name}, without its comments and with absolute "
        f"paths.\n{tables.rstrip()}",
    )
