"""The defaults beside settings that were searched for, on data that they were not chosen on.

The defaults of λ, l2, rate, batch and patience were chosen on three data sets (`CHOSEN_ON`), and
are confirmed on others; the pilots of small data were revised after a look at `REVISED_ON`, and
are confirmed on the sets of `benchmarks.unseen`. Each recipe names only its data and its split. The
rival is the best of a random search over λ, l2 and its measure and the tables' rate, by the
selection pairs; test pairs are used once, by both, for every seed. `defaults` is of small data,
which has pilots; `defaults-large` takes hours.

    OMP_NUM_THREADS=1 python -m benchmarks defaults > defaults.log

Results are kept in build/defaults, so that an interrupted run resumes.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks import gowalla, unseen
from benchmarks.tiny import recipes
from evergram.data.row_pairs import RowPairs
from evergram.data.split import Split
from evergram.training.corpora import final_split, load_corpus, split_for
from evergram.training.fit import Refit, RunContext, fit_encoder
from evergram.training.pilots import run_pilots
from evergram.training.recipe import Recipe

CHOSEN_ON = ("movielens-25m-head", "gowalla", "amazon-beauty")
CONFIRMED_ON = tuple(unseen.READERS)
# The pilots were revised after a look at these: they show, and confirm nothing.
REVISED_ON = ("movielens-latest-small", "wikispeedia", "amazon-musical-instruments")
# Too large for pilots: the formula decides.
LARGE = ("yelp2018", *CHOSEN_ON)
# More splits where there are few test queries, fewer where a search takes an hour.
SEEDS = {"lastfm": 6, "citeulike-t": 2, "amazon-musical-instruments": 10}
LEAST_SEEDS = 3
# Settings that are searched, beside the defaults; fewer where a training takes minutes.
TRIALS = {"gowalla": 12, "yelp2018": 12}
MOST_TRIALS = 24
METRIC = "recall@20"
# Queries at most whose selection pairs choose an epoch: to rank for thirty thousand after every
# epoch takes longer than the epoch.
JUDGED = 4000
# Half of the 95 % interval of a mean of n is this many standard errors (Student's t).
STUDENT = {
    2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26, 20: 2.09,
}  # fmt: skip
KEPT = gowalla.ROOT / "build" / "defaults"


@dataclass(frozen=True)
class Comparison:
    """The defaults and the best settings of the search, on one data set.

    Args:
        default, tuned: the metric on the test pairs, by seed.
        strengths: λ and l2 that "auto" became.
        settings: the best settings of the search, as overrides.
    """

    data: str
    interactions: int
    default: list[float]
    tuned: list[float]
    popularity: float
    strengths: tuple[float, float]
    settings: list[str]
    best_is_last: bool


def recipe_of(name: str) -> dict[str, Any]:
    """Return a recipe of the data and its split, with defaults for all else."""
    if name in ("gowalla", "yelp2018"):
        folder = gowalla.convert(name=name)
        data = {
            "kind": "table",
            "path": str(folder / "train.parquet"),
            "test": str(folder / "test.parquet"),
        }
        return {"data": data, "split": {"kind": "given"}}
    if name in unseen.READERS:
        data = {"kind": "table", "path": str(unseen.convert(name))}
        return {"data": data, "split": {"kind": "random"}}
    path = gowalla.DATA / name
    if name == "movielens-latest-small":
        path /= "ml-latest-small.zip"
    kind = name.split("-")[0]
    return {"data": {"kind": kind, "path": str(path)}, "split": {"kind": "random"}}


def measure(names: Sequence[str] = (*CONFIRMED_ON, *REVISED_ON)) -> list[Comparison]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [
            compare(
                name,
                recipe_of(name),
                TRIALS.get(name, MOST_TRIALS),
                range(SEEDS.get(name, LEAST_SEEDS)),
                KEPT / f"{name}.jsonl",
            )
            for name in names
        ]
    finally:
        torch.set_num_threads(threads)


def measure_large() -> list[Comparison]:
    return measure(LARGE)


def tiny() -> list[Comparison]:
    with recipes() as folder:
        values = {
            "data": {
                "kind": "table",
                "path": str(folder / "train.parquet"),
                "test": str(folder / "test.parquet"),
            },
            "split": {"kind": "given", "share": 0.2},
            "model": {"dim": 4},
            "training": {"epochs": 2},
        }
        return [compare("tiny", values, 2, range(2), folder / "kept.jsonl")]


def compare(
    name: str, values: dict[str, Any], trials: int, seeds: Sequence[int], kept: Path
) -> Comparison:
    """Search by the selection pairs with the first seed, then train and test with all."""
    runs = Runs(values, kept)
    best: list[str] = []
    highest = -1.0
    for settings in space(name, trials):
        value = runs.select(settings, seeds[0])
        if value > highest:
            highest, best = value, settings
    default = [runs.test([], seed) for seed in seeds]
    tuned = [runs.test(best, seed) for seed in seeds]
    return Comparison(
        name,
        default[0]["interactions"],
        [run[METRIC] for run in default],
        [run[METRIC] for run in tuned],
        default[0]["popularity"],
        (default[0]["penalty"], default[0]["l2"]),
        best,
        any(run["best_is_last"] for run in default),
    )


def space(name: str, trials: int) -> Iterator[list[str]]:
    """Return the settings drawn for a data set, always the same ones."""
    draw = random.Random(name)

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    for _ in range(trials):
        yield [
            f"task.penalty={between(2, 200):.3g}",
            f"task.l2={between(0.003, 0.3):.3g}",
            f"task.l2_measure={draw.choice(['penalty', 'examples'])}",
            f"training.table_rate={draw.choice([0.05, 0.1, 0.2])}",
        ]


class NotKeptError(Exception):
    """A training that was not to be run has no kept result."""


class Runs:
    """Trainings on one data set, each run once and kept in a file, one JSON object a line.

    Args:
        trains: False runs none, and raises NotKeptError in place of one.
    """

    def __init__(self, values: dict[str, Any], kept: Path, *, trains: bool = True) -> None:
        self.values = values
        self.kept = kept
        self.trains = trains
        self.done: dict[str, dict[str, Any]] = {}
        if kept.is_file():
            for line in kept.read_text().splitlines():
                record = json.loads(line)
                self.done[record["key"]] = record
        self.corpus = load_corpus(Recipe.of(values))
        self.splits: dict[int, Split] = {}

    def select(self, settings: Sequence[str], seed: int) -> float:
        """Return the metric on the selection pairs, without using a test pair."""
        recipe, split = self._prepare(settings, seed)
        none = torch.zeros(0, dtype=torch.int64)
        run = self._once("select", recipe, replace(split, test=RowPairs(none, none)), None)
        value: float = run["selection"]
        return value

    def test(self, settings: Sequence[str], seed: int) -> dict[str, Any]:
        """Return the metric on the test pairs, as `evergram train` would report it."""
        recipe, split = self._prepare(settings, seed)
        final = final_split(split, refits=recipe.refits)
        return self._once("test", recipe, split, None if final is split else Refit(final))

    def _prepare(self, settings: Sequence[str], seed: int) -> tuple[Recipe, Split]:
        # Each seed has held-out pairs of its own: a few hundred test pairs say little alone.
        salt = [f'split.salt="{seed}"'] if seed else []
        recipe = Recipe.of(self.values, [f"seed={seed}", *salt, f'metrics=["{METRIC}"]', *settings])
        if seed not in self.splits:
            split = split_for(recipe, self.corpus, 0)
            self.splits[seed] = replace(split, selection=_some(split.selection, JUDGED))
        return recipe, self.splits[seed]

    def _once(self, what: str, recipe: Recipe, split: Split, refit: Refit | None) -> dict[str, Any]:
        about = recipe.model_dump_json(exclude={"upgrade", "compare"})
        for path in filter(None, (recipe.data.path, recipe.data.test)):
            about = about.replace(f'"{path}"', f'"{Path(path).name}"')  # where it is says nothing
        digest = hashlib.sha256(about.encode())
        for pairs in (split.selection, split.test):
            digest.update(pairs.query.numpy().tobytes() + pairs.candidate.numpy().tobytes())
        key = f"{what} {digest.hexdigest()[:16]}"
        if key not in self.done:
            if not self.trains:
                raise NotKeptError(key)
            record = {"key": key, **_train(recipe, split, refit)}
            self.kept.parent.mkdir(parents=True, exist_ok=True)
            with self.kept.open("a") as file:
                file.write(json.dumps(record) + "\n")
            self.done[key] = record
        return self.done[key]


def _train(recipe: Recipe, split: Split, refit: Refit | None) -> dict[str, Any]:
    context = RunContext(torch.device("cpu"))
    pilots = run_pilots(recipe, split, 0, context)
    fitted = fit_encoder(pilots.recipe, split, 0, context, refit=refit)
    tested = {
        METRIC: fitted.metrics["model"][METRIC],
        "popularity": fitted.metrics["popularity"][METRIC],
    }
    return {
        **(tested if len(split.test) else {}),
        "selection": max(record[METRIC] for record in fitted.history),
        "penalty": fitted.penalty[0],
        "l2": fitted.l2,
        "settings": {
            "task": recipe.task.model_dump(exclude_defaults=True),
            "training": recipe.training.model_dump(exclude_defaults=True),
        },
        "seed": recipe.seed,
        "epoch": fitted.best_epoch,
        "epochs": len(fitted.history),
        "best_is_last": any("is the last" in warning for warning in fitted.warnings),
        "interactions": len((split if refit is None else refit.split).training),
        "seconds": round(fitted.seconds, 1),
    }


def _some(pairs: RowPairs, queries: int) -> RowPairs:
    """Return all pairs of at most so many queries, always the same ones."""
    distinct = torch.unique(pairs.query)
    order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(0))
    chosen = torch.isin(pairs.query, distinct[order[:queries]])
    return RowPairs(pairs.query[chosen], pairs.candidate[chosen])


def table(comparisons: Sequence[Comparison]) -> str:
    lines = [
        "| data | pairs trained on | defaults' λ, l2 | searched λ, l2, measure, rate "
        "| Recall@20, defaults | searched | defaults / searched | popularity |",
        "|" + "---|" * 8,
    ]
    for one in comparisons:
        chosen = " (chosen on it)" if one.data in CHOSEN_ON else ""
        chosen = " (looked at)" if one.data in REVISED_ON else chosen
        words = ", ".join(setting.split("=")[1] for setting in one.settings)
        ratios = [a / b for a, b in zip(one.default, one.tuned, strict=True)]
        cells = [
            f"{one.data}{chosen}",
            f"{one.interactions:,}",
            ", ".join(f"{value:.3g}" for value in one.strengths),
            words,
            interval(one.default, 4),
            interval(one.tuned, 4),
            interval(ratios, 3),
            f"{one.popularity:.4f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    seeds = ", ".join(f"{len(one.default)} ({one.data})" for one in comparisons)
    lines += [
        "",
        "± is half of the 95 % interval of the mean over seeds, each with a split of its own: "
        f"{seeds}.",
    ]
    late = [one.data for one in comparisons if one.best_is_last]
    if late:
        lines.append(f"The best epoch of the defaults was the last of all on: {', '.join(late)}.")
    return "\n".join(lines)


def interval(values: Sequence[float], digits: int) -> str:
    """Return a mean with half of its 95 % interval, in words."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    half = STUDENT.get(len(values), 2.0) * stdev(values) / math.sqrt(len(values))
    return f"{mean(values):.{digits}f} ± {half:.{digits}f}"
