"""Search the values of a recipe's keys: train with many of them, and keep the best by the selection
pairs. An Optuna study proposes the values, prunes trials and keeps them in a folder."""

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
# The default search. A softmax over all candidates needs no penalty: its temperature decides most.
OF_SOFTMAX = ("task.temperature=log:0.03..1.0", "task.push=0.8..1.5")
OF_OTHERS = ("task.penalty=log:0.01..10.0", "task.l2=log:1e-5..0.1")
# A step of Adam is as long as the rate; other optimisers divide the rate by past gradients.
RATES = ("training.table_rate=log:0.01..1.0", "training.layer_rate=log:1e-4..0.03")
RATES_OF_ADAM = ("training.table_rate=log:0.001..0.1", RATES[1])
TABLES = ("model", "task", "prior", "gramian", "training")
# What a trial is judged by, and what it never does.
FIXED = ("training.metric", "training.refit")
NAME, LOCK = "trials.jsonl", ".lock"
# The best first.
STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
# Trials that are not pruned, at first: a median of fewer says little.
UNPRUNED = 4
Values = CategoricalDistribution | IntDistribution | FloatDistribution
# Draws for values that no trial has had, after which there are none.
DRAWS = 200


def parse_range(text: str) -> tuple[str, Values]:
    """Return the key and the values of a text such as "model.dim=16..128", "a.b=log:.1..10" or
    "model.dim=32,64"; choices are as TOML writes them. Raises: RecipeError."""
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
            raise ValueError("the key or a choice is empty, or one comes twice")
        return key, CategoricalDistribution(choices)
    except ValueError as error:
        raise RecipeError(f"{text!r}: {str(error).rstrip('.')}; {_FORMS}.") from None


def search_space(texts: Sequence[str], recipe: Recipe) -> dict[str, BaseDistribution]:
    """Return the values of each key of a search over texts, each as in `parse_range`. Integers
    become numbers where the key takes them.

    Raises: RecipeError: a key comes twice or would change how trials are judged, or the recipe
        does not allow an end of a range or a choice.
    """
    space: dict[str, BaseDistribution] = {}
    values = recipe.model_dump()
    for key, chosen in map(parse_range, texts):
        table, _, name = key.partition(".")
        if not name or table not in TABLES or key in FIXED or key in space:
            raise RecipeError(
                f"The search over {key} cannot be: trials must be judged alike. Give keys of "
                f"{', '.join(TABLES)}, each once, but not {' or '.join(FIXED)}."
            )
        if isinstance(chosen, CategoricalDistribution):
            ends: Sequence[Any] = chosen.choices
        else:
            ends = (chosen.low, chosen.high)
        for end in ends:
            Recipe.of(values, [f"{key}={end}"], source=f"The search over {key}={end}")
        if isinstance(chosen, IntDistribution):
            with suppress(RecipeError):
                Recipe.of(values, [f"{key}={chosen.low + 0.5}"])
                chosen = FloatDistribution(chosen.low, chosen.high, log=chosen.log)
        space[key] = chosen
    return space


def default_ranges(recipe: Recipe) -> list[str]:
    """Return the default ranges of the keys that the recipe's task and model use."""
    texts = list(OF_SOFTMAX if recipe.task.kind == "softmax_all" else OF_OTHERS)
    texts += RATES_OF_ADAM if recipe.training.optimizer == "adam" else RATES
    used = []
    for text in texts:
        with suppress(RecipeError):
            search_space([text], recipe)
            used.append(text)
    return used


@dataclass(frozen=True)
class Tuned:
    """The trials of a search, in their order; `ended` is "trials", "interrupted", or "exhausted":
    there were no other values.

    A trial's `value` is the best of its selection metric; its `user_attrs` have `epochs`,
    `best_epoch`, `seconds` and `error`.
    """

    recipe: Recipe
    trials: Sequence[FrozenTrial]
    ended: str

    @property
    def ranked(self) -> list[FrozenTrial]:
        """All trials, best first: the complete ones, then the pruned, then the failed."""
        return sorted(self.trials, key=lambda t: (STATES.index(t.state), -(t.value or 0), t.number))

    @property
    def best(self) -> FrozenTrial:
        return self.ranked[0]

    @property
    def best_recipe(self) -> Recipe:
        return with_values(self.recipe, self.best.params)

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
    """Train version 0 of a recipe with many values of its keys, and rank them by the best
    `training.metric` of each on the selection pairs. No test pair is looked at, and nothing is
    refitted.

    Args:
        over: the keys and their values, as in `parse_range`; None is `default_ranges`.
        folder: keeps each trial as it ends; the same search in the same folder goes on.
        corpus: None reads the one that the recipe names.
        trials: in all, those in the folder included.
        progress: whether steps and evaluations are shown on stderr.
    Returns: also after Ctrl-C, if a trial is complete.
    Raises: RecipeError: a key or a value is not allowed, or the folder has another search or a
        running one. TrainingError: no trial is complete. DataError.
    """
    space = search_space(over or default_ranges(recipe), recipe)
    corpus = corpus_for(recipe, corpus)
    split = split_for(recipe, corpus, 0).without_test("A search of values looks at no test pair.")
    shown = Progress.of_choice(progress)
    recipe, _ = with_selecting_metric(recipe, split, shown)
    context = RunContext(pick_device(device, recipe.training.tables), shown, warns=False)
    identity = run_identity(recipe.model_dump_json(), 0, split, Companions(), "tune")
    make_folder(folder)
    try:
        with file_lock(folder / LOCK, timeout=0):
            study = _study(folder, identity, space)
            ended = _search(recipe, split, space, context, study, trials)
    except Timeout:
        raise RecipeError(
            f"Another process searches in {folder}; wait for it, or give another folder."
        ) from None
    tuned = Tuned(recipe, study.trials, ended)
    if not any(trial.state == TrialState.COMPLETE for trial in tuned.trials):
        failed = [f" Trial {t.number + 1}: {t.user_attrs['error']}" for t in tuned.trials]
        why = "".join(failed[:1]) or " It was interrupted."
        raise TrainingError(f"No trial of the search is complete, so there is no best one.{why}")
    return tuned


def with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with a trial's values. Raises: RecipeError: they do not go together."""
    return Recipe.of(recipe.model_dump(), overrides_of(values), source="The trial")


def overrides_of(values: Mapping[str, Any]) -> list[str]:
    """Return values as overrides of a recipe, "table.key=value" each."""
    return [f"{key}={value}" for key, value in values.items()]


def _study(
    folder: Path, identity: Mapping[str, str], space: Mapping[str, BaseDistribution]
) -> optuna.Study:
    """Return the study that a folder keeps, or a new one. Raises: RecipeError: it has another."""
    path = folder / NAME
    path.touch()
    with path.open("r+b") as file:  # without a line whose writing was cut off
        file.truncate(file.read().rfind(b"\n") + 1)
    try:
        study = optuna.create_study(
            study_name="evergram",
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(path))),
            direction="maximize",
            load_if_exists=True,
        )
        known = study.user_attrs
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise RecipeError(
            f"{path} is not a journal of trials ({error!r}); give another folder, or remove it."
        ) from None
    written = {key: distribution_to_json(chosen) for key, chosen in space.items()}
    if not study.trials:
        study.set_user_attr("identity", dict(identity))
        study.set_user_attr("space", written)
    elif what := difference(identity, known["identity"]) or (
        "other keys or values to search over" if known["space"] != written else ""
    ):
        raise RecipeError(f"{folder} has the trials of {what}; give another folder, or remove it.")
    return study


def _search(
    recipe: Recipe,
    split: Split,
    space: Mapping[str, BaseDistribution],
    context: RunContext,
    study: optuna.Study,
    count: int,
) -> str:
    """Run trials until there are `count`, each kept when it ends. Return what ended the search."""
    metric = recipe.training.metric
    try:
        while (number := len(study.trials) + 1) <= count:
            proposal = propose(space, study.trials, recipe.seed)
            if proposal is None:
                return "exhausted"
            pruning = [Pruning(proposal, metric)]
            own = replace(context, callbacks=pruning, title=f"trial {number}")
            facts = {"epochs": 0, "best_epoch": 0, "seconds": 0.0, "error": ""}
            values: dict[str, Any] = {"state": TrialState.FAIL}
            try:
                trained = fit_encoder(with_values(recipe, proposal.params), split, 0, own)
                history = {int(r["epoch"]): float(r[metric]) for r in trained.history}
                best = trained.best_epoch
                if not math.isfinite(history.get(best, math.nan)):
                    raise TrainingError(f"{metric} was never measured.")
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
    """Return Optuna's proposal after these trials, by its tree-structured Parzen estimator.

    It is a function of the arguments, so that a search that was interrupted proposes what an
    undisturbed one would. Values that were tried already are replaced by others, drawn at random;
    None if there are no others.

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
    """Ends a run whose best value so far is below the median of the earlier trials at that epoch,
    which Optuna's proposal knows."""

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
    """Write the recipe in `source` with overrides set in it; comments are lost, paths absolute.

    Raises: RecipeError: the file that was written would not be the same recipe; it is not kept.
    """
    values = copied(tomllib.loads(source.read_text()))
    resolve_paths(values, source.parent)
    wanted = Recipe.load(source, overrides)
    tables = toml_of(wanted.written_of(overridden(values, overrides)))
    if Recipe.of(tomllib.loads(tables), source=str(path)) != wanted:
        raise RecipeError(f"The best values cannot be written to {path} as a recipe.")
    write_text(
        path,
        f"# Written by evergram tune: the comments of {source.name} are not kept, its paths are "
        f"absolute.\n{tables.rstrip()}",
    )
