"""The defaults compared with a longer search and with popularity.

Each recipe sets only its data and its split. Both methods use the test pairs once per seed.

    OMP_NUM_THREADS=1 python -m benchmarks defaults > defaults.log

Results are saved in build/defaults, so that an interrupted run can resume.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks import gowalla
from benchmarks.records import Kept
from benchmarks.tiny import recipes
from evergram.data.split import RowPairs, Split
from evergram.errors import TrainingError
from evergram.training.build import final_split, load_corpus, split_for
from evergram.training.fit import Refit, RunContext, fit_encoder
from evergram.training.pilots import (
    LEAST_GAIN,
    OTHER,
    PilotSettings,
    open_settings,
    run_pilots,
    starts,
    with_more_selection,
)
from evergram.training.recipe import Recipe

DATA = (
    "movielens-latest-small",
    "wikispeedia",
    "amazon-musical-instruments",
    "amazon-beauty",
)
SEEDS = 3
# Maximum number of trainings in the longer search.
MOST = 24
METRIC = "recall@20"
# Maximum number of queries whose selection pairs choose an epoch: ranking for thirty thousand
# takes longer than an epoch.
JUDGED = 4000
# Half of the 95 % interval of a mean of n is this many standard errors (Student's t).
STUDENT = {
    2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26, 20: 2.09,
}  # fmt: skip
KEPT = gowalla.ROOT / "build" / "defaults"


Record = dict[str, Any]
# By data set: one record per seed, for the defaults and for the longer search.
Compared = dict[str, tuple[list[Record], list[Record]]]


def recipe_of(name: str) -> dict[str, Any]:
    """Return a recipe with the data and its split, and defaults for everything else."""
    if name in ("gowalla", "yelp2018"):
        folder = gowalla.convert(name=name)
        data = {
            "kind": "table",
            "path": str(folder / "train.parquet"),
            "test": str(folder / "test.parquet"),
        }
        return {"data": data, "split": {"kind": "given"}}
    path = gowalla.DATA / name
    if name == "movielens-latest-small":
        path /= "ml-latest-small.zip"
    kind = name.split("-")[0]
    return {"data": {"kind": kind, "path": str(path)}, "split": {"kind": "random"}}


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def measure() -> Compared:
    """Compare on each available data set."""
    with one_thread():
        return {
            name: compare(Runs(recipe_of(name), KEPT / name), SEEDS)
            for name in DATA
            if (gowalla.DATA / name).exists()
        }


def tiny() -> Compared:
    with recipes() as folder:
        values = {
            "data": {
                "kind": "table",
                "path": str(folder / "train.parquet"),
                "test": str(folder / "test.parquet"),
            },
            "split": {"kind": "given", "share": 0.2},
            "model": {"dim": 4},
            "training": {"epochs": 3, "patience": 2},
        }
        return {"tiny": compare(Runs(values, folder / "kept"), 1)}


def compare(runs: Runs, seeds: int) -> tuple[list[Record], list[Record]]:
    default = [runs.test([], seed) for seed in range(seeds)]
    return default, [runs.test([], seed, longer=True) for seed in range(seeds)]


class Runs:
    """Trainings on one data set, each run once and saved in a folder."""

    def __init__(self, values: dict[str, Any], folder: Path) -> None:
        self.values = values
        self.kept = Kept(folder)
        self.corpus = load_corpus(Recipe.of(values))
        self.splits: dict[int, Split] = {}

    def select(self, settings: Sequence[str], seed: int) -> float:
        """Return the metric on the selection pairs, without using test pairs."""
        recipe, split = self._prepare(settings, seed)
        none = torch.zeros(0, dtype=torch.int64)
        run = self._once("select", recipe, replace(split, test=RowPairs(none, none)), None)
        value: float = run["selection"]
        return value

    def test(self, settings: Sequence[str], seed: int, *, longer: bool = False) -> dict[str, Any]:
        """Return the metric on the test pairs as `evergram train` would report it, optionally after
        a `longer` search."""
        recipe, split = self._prepare(settings, seed)
        final = final_split(split, refits=recipe.refits)
        what = "longer" if longer else "test"
        return self._once(what, recipe, split, None if final is split else Refit(final))

    def _prepare(self, settings: Sequence[str], seed: int) -> tuple[Recipe, Split]:
        # Each seed has different held-out pairs, because a few hundred test pairs are too noisy.
        own = [f"seed={seed}", f'name="{seed}"', f'metrics=["{METRIC}"]']
        recipe = Recipe.of(self.values, [*own, *settings])
        if seed not in self.splits:
            split = split_for(recipe, self.corpus, 0)
            self.splits[seed] = replace(split, selection=of_some_queries(split.selection, JUDGED))
        return recipe, self.splits[seed]

    def _once(self, what: str, recipe: Recipe, split: Split, refit: Refit | None) -> dict[str, Any]:
        about = _about(recipe)
        data = recipe.model_dump()["data"]
        for path in filter(None, (data.get("path"), data.get("test"))):
            about = about.replace(f'"{path}"', f'"{Path(path).name}"')  # ignore the folder
        digest = hashlib.sha256(about.encode())
        for pairs in (split.selection, split.test):
            digest.update(pairs.query.numpy().tobytes() + pairs.candidate.numpy().tobytes())
        train = partial(_train, recipe, split, refit, longer=what == "longer")
        return self.kept.get(f"{what} {digest.hexdigest()[:16]}", train)


def _about(recipe: Recipe) -> str:
    """Return the settings that a training depends on, as JSON. Others are left out, so that saved
    results remain valid."""
    training, strengths = recipe.training, (recipe.task.penalty, recipe.task.l2)
    if training.optimizer == "auto" and "auto" not in strengths:
        training = training.decided()
    return recipe.model_copy(update={"training": training}).model_dump_json(exclude={"upgrade"})


def _train(recipe: Recipe, split: Split, refit: Refit | None, *, longer: bool) -> dict[str, Any]:
    context = RunContext(torch.device("cpu"))
    begun = time.process_time()
    if longer:
        chosen = longer_search(recipe, split, context)
    else:
        chosen = run_pilots(recipe, split, 0, context).recipe
    fitted = fit_encoder(chosen, split, 0, context, refit=refit)
    tested = {
        METRIC: fitted.metrics["model"][METRIC],
        "popularity": fitted.metrics["popularity"][METRIC],
    }
    return {
        **(tested if len(split.test) else {}),
        "selection": max(record[METRIC] for record in fitted.history),
        "settings": {
            "task": recipe.task.model_dump(exclude_defaults=True),
            "training": recipe.training.model_dump(exclude_defaults=True),
        },
        "seed": recipe.seed,
        "interactions": len((split if refit is None else refit.split).training),
        "cpu": round(time.process_time() - begun, 1),
    }


def longer_search(recipe: Recipe, split: Split, context: RunContext) -> Recipe:
    """Return the recipe with the best of up to 24 fully trained settings: sixteen around the
    formula's, then changes of one setting at a time, starting from the best."""
    judged, values = with_more_selection(split), dict[PilotSettings, float]()

    def gains(settings: PilotSettings) -> bool:
        best = max(values.values(), default=-math.inf)
        try:
            history = fit_encoder(settings.within(recipe), judged, 0, context).history
        except TrainingError:
            values[settings] = -math.inf
        else:
            values[settings] = max(record[METRIC] for record in history)
        return values[settings] > LEAST_GAIN * best

    around = starts(recipe, split)
    best = around[0]
    for settings in around:
        best = settings if gains(settings) else best
    gained = True
    while gained:
        gained = False
        for name in ("l2", "l2_measure", "penalty", "table_rate"):
            for factor in (2.0, 0.5) if name in open_settings(recipe) else ():
                while len(values) < MOST:
                    old = getattr(best, name)
                    moved: Any = OTHER[old] if name == "l2_measure" else factor * old
                    settings = replace(best, **{name: moved})
                    if settings in values or not gains(settings):
                        break
                    best, gained = settings, True
    return best.within(recipe)


def of_some_queries(pairs: RowPairs, queries: int) -> RowPairs:
    """Return all pairs of at most `queries` queries; the choice is deterministic."""
    distinct = torch.unique(pairs.query)
    order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(0))
    chosen = torch.isin(pairs.query, distinct[order[:queries]])
    return RowPairs(pairs.query[chosen], pairs.candidate[chosen])


def table(compared: Compared) -> str:
    lines = [
        "| data | pairs trained on | Recall@20, defaults | CPU seconds | longer search "
        "| CPU seconds | defaults / longer search | popularity |",
        "|" + "---|" * 8,
    ]
    for name, sides in compared.items():
        cells = [name, f"{sides[0][0]['interactions']:,}"]
        for runs in sides:
            cells.append(interval([run[METRIC] for run in runs], 4))
            cells.append(f"{mean(run['cpu'] for run in runs):.0f}")
        cells.append(interval([a[METRIC] / b[METRIC] for a, b in zip(*sides, strict=True)], 3))
        cells.append(f"{mean(run['popularity'] for run in sides[0]):.4f}")
        lines.append(f"| {' | '.join(cells)} |")
    note = "± is half of the 95 % interval of the mean over seeds, each with a split of its own."
    return "\n".join([*lines, "", note])


def half_interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of a mean."""
    return STUDENT.get(len(values), 2.0) * stdev(values) / math.sqrt(len(values))


def interval(values: Sequence[float], digits: int) -> str:
    """Return a mean ± half of its 95 % interval, as text."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {half_interval(values):.{digits}f}"
