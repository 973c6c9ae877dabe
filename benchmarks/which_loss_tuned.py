"""`evergram tune` of each of three objectives on data that no row of `which_loss` has.

Keys of one loss are refused beside another, so each objective is a search of its own, with as many
trials as the others. The best by the selection pairs are trained with every seed, each with a split
of its own, and test pairs are ranked once a seed. Trials and results are kept in
build/which-loss-tuned, so that an interrupted run resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks import gowalla
from benchmarks.defaults import METRIC, Runs, interval, recipe_of
from benchmarks.tiny import recipes
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe
from evergram.training.tuning.trials import overrides_of, tune

DATA, PART = "amazon-beauty", 10
TRIALS, SEEDS = 5, 3
FOLDER = gowalla.ROOT / "build" / "which-loss-tuned"
STRENGTHS = ["task.penalty=log:1.0..100.0", "task.l2=log:0.003..1.0"]


@dataclass(frozen=True)
class Search:
    """What an objective sets, and the values of its keys that are searched."""

    fixed: Sequence[str]
    over: Sequence[str]


SEARCHES = {
    "squared": Search([], [*STRENGTHS, "training.table_rate=0.05,0.1,0.2"]),
    "squared, solver": Search(["training.optimizer=als"], STRENGTHS),
    "softmax, unit rows": Search(
        [
            *("task.kind=softmax_all", "model.normalize=true", "model.start=smooth"),
            *("training.optimizer=adam", "training.batch_size=4096"),
            *("training.epochs=60", "training.decay=0.97"),
        ],
        [
            *("task.temperature=log:0.06..0.4", "task.push=1.0,1.1,1.22"),
            "training.table_rate=0.01,0.02,0.04",
        ],
    ),
}


@dataclass(frozen=True)
class Row:
    """An objective's best trial, and Recall@20 on the test pairs, a value a seed.

    Args:
        selection: of the best trial.
        settings: its values.
    """

    objective: str
    selection: float
    settings: Mapping[str, Any]
    recalls: Sequence[float]


@dataclass(frozen=True)
class Tuned:
    data: str
    trials: int
    rows: Sequence[Row]
    popularity: Sequence[float]


def measure() -> Tuned:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        name = f"{DATA}, a tenth of the queries"
        return _measure(name, _some_queries(), TRIALS, range(SEEDS), FOLDER)
    finally:
        torch.set_num_threads(threads)


def tiny() -> Tuned:
    with recipes() as folder:
        values = {
            "data": {"kind": "table", "path": str(folder / "pairs.parquet")},
            "split": {"kind": "random", "share": 0.2},
            "model": {"dim": 4},
        }
        return _measure("tiny", values, 1, range(2), folder, ["training.epochs=1"])


def _some_queries() -> dict[str, Any]:
    """Return a recipe of every tenth query's pairs."""
    whole = load_corpus(Recipe.of(recipe_of(DATA)))
    chosen = whole.column("query") % PART == 0
    pairs = {side: whole.column(side)[chosen].numpy() for side in ("query", "candidate")}
    FOLDER.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(pairs), FOLDER / "pairs.parquet")
    data = {"kind": "table", "path": str(FOLDER / "pairs.parquet")}
    return {"data": data, "split": {"kind": "random"}}


def _measure(
    name: str,
    values: dict[str, Any],
    trials: int,
    seeds: Sequence[int],
    folder: Path,
    last: Sequence[str] = (),
) -> Tuned:
    """Search with each objective, and rank the test pairs by the best of each.

    Args:
        last: overrides after those of the objectives.
    """
    runs = Runs(values, folder / "tests.jsonl")
    rows, popularity = [], [0.0]
    for objective, search in SEARCHES.items():
        fixed = [*search.fixed, *last]
        recipe = Recipe.of(values, [*fixed, f'metrics=["{METRIC}"]'])
        own = folder / objective.replace(", ", "-").replace(" ", "-")
        best = tune(
            recipe, search.over, own, runs.corpus, trials=trials, device="cpu", progress=False
        ).best
        tested = [runs.test([*fixed, *overrides_of(best.values)], seed) for seed in seeds]
        rows.append(Row(objective, best.value or 0.0, best.values, [run[METRIC] for run in tested]))
        popularity = [run["popularity"] for run in tested]
    return Tuned(name, trials, rows, popularity)


def table(tuned: Tuned) -> str:
    """Return a table of the objectives, best by the selection pairs first, and what it confirms."""
    lines = [
        "| objective | best trial | Recall@20, selection pairs | test pairs | minus squared |",
        "|---|---|---|---|---|",
    ]
    (squared,) = (row.recalls for row in tuned.rows if row.objective == "squared")
    for row in sorted(tuned.rows, key=lambda r: -r.selection):
        words = ", ".join(f"{key.split('.')[1]} {_short(v)}" for key, v in row.settings.items())
        gains = [a - b for a, b in zip(row.recalls, squared, strict=True)]
        gain = "–" if row.objective == "squared" else interval(gains, 4)
        lines.append(
            f"| {row.objective} | {words} | {row.selection:.4f} | {interval(row.recalls, 4)} "
            f"| {gain} |"
        )
    lines += [
        f"| popularity | – | – | {interval(tuned.popularity, 4)} | – |",
        "",
        f"On {tuned.data}; {tuned.trials} trials each. ± is half of the 95 % interval of the mean "
        f"over {len(squared)} seeds, each with a split of its own; differences are of the same "
        "split.",
    ]
    return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{float(value):.3g}"
