"""Which loss for which data: each objective's best of a small search, on data of several kinds.

Every objective has as many settings drawn at random, chosen by the selection pairs of the first
split; test pairs are used once, for every seed, each with a split of its own. Results are kept in
benchmarks/kept/which-loss, so that an interrupted run resumes, on another machine, too.
`which_loss_report` makes the table.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow.parquet as pq
import torch

from benchmarks import gowalla
from benchmarks.defaults import METRIC, Runs, recipe_of
from benchmarks.tiny import recipes
from benchmarks.which_loss_report import Row, tables

TRIALS, SEEDS = 6, 3
FOLDER = gowalla.ROOT / "benchmarks" / "kept" / "which-loss"
DATA = (
    "amazon-musical-instruments",
    "movielens-latest-small",
    "wikispeedia",
    "gowalla, a sixth of the queries",
    "yelp2018, a sixth of the queries",
    "citeulike-t",
    "foursquare",
)
# Rates fall by e² over the sixty epochs; patience ends most trainings before.
SOFTMAX = [
    *("task.kind=softmax_all", "training.optimizer=adam", "training.batch_size=4096"),
    *("training.epochs=60", "training.decay=0.97"),
]
UNIT = ["model.normalize=true", "model.start=smooth"]


def _squared(draw: random.Random) -> list[str]:
    rate = draw.choice([0.05, 0.1, 0.2])
    return [*_strengths(draw), f"training.table_rate={rate}"]


def _solver(draw: random.Random) -> list[str]:
    return ["training.optimizer=als", *_strengths(draw)]


def _unit(draw: random.Random) -> list[str]:
    return [
        *(*SOFTMAX, *UNIT, f"task.temperature={_between(draw, 0.06, 0.4):.3g}"),
        f"task.push={draw.choice([1.0, 1.1, 1.22])}",
        f"training.table_rate={draw.choice([0.01, 0.02, 0.04])}",
    ]


def _neighbours(draw: random.Random) -> list[str]:
    return [
        *_unit(draw),
        f"task.neighbour_share={draw.choice([0.1, 0.2, 0.3])}",
        "training.rescale_rows=true",
    ]


def _free(draw: random.Random) -> list[str]:
    return [
        *(*SOFTMAX, f"task.l2={_between(draw, 0.003, 1):.3g}"),
        f"training.table_rate={draw.choice([0.01, 0.02, 0.04])}",
    ]


def _clusters(draw: random.Random) -> list[str]:
    return [
        *("task.kind=softmax_clustered", "task.clusters=256", *UNIT),
        *("training.optimizer=adam", "training.batch_size=1024", "training.epochs=60"),
        f"task.temperature={_between(draw, 0.06, 0.4):.3g}",
        f"training.table_rate={draw.choice([0.005, 0.01, 0.02])}",
    ]


def _second_order(draw: random.Random) -> list[str]:
    return [
        *("task.kind=second_order", "task.penalty=0", "task.query_measure=1"),
        f"task.temperature={_between(draw, 0.1, 2):.3g}",
        f"task.l2={_between(draw, 0.003, 1):.3g}",
        f"training.table_rate={draw.choice([0.05, 0.1, 0.2])}",
    ]


OBJECTIVES: dict[str, Callable[[random.Random], list[str]]] = {
    "squared": _squared,
    "squared, solver": _solver,
    "softmax, unit rows": _unit,
    "softmax, unit rows, neighbours": _neighbours,
    "softmax, free rows": _free,
    "softmax, 256 clusters": _clusters,
    "second-order softmax": _second_order,
}


def measure() -> list[Row]:
    """Return a row for each data set that is there."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [
            _row(name, values_of(name), TRIALS, range(SEEDS), FOLDER)
            for name in DATA
            if available(name)
        ]
    finally:
        torch.set_num_threads(threads)


def tiny() -> list[Row]:
    with recipes() as folder:
        values = {
            "data": {"kind": "table", "path": str(folder / "pairs.parquet")},
            "split": {"kind": "random", "share": 0.2},
            "model": {"dim": 4},
        }
        short = ["training.epochs=1"]
        return [_row("tiny", values, 1, range(2), folder, short)]


def available(name: str) -> bool:
    return (gowalla.DATA / name.split(",")[0]).is_dir()


def values_of(name: str) -> dict[str, Any]:
    """Return a recipe of the data and its split; of a published one the pairs to train, split
    anew."""
    whole, _, part = name.partition(",")
    if not part:
        return recipe_of(whole)
    target = gowalla.ROOT / "build" / whole / "sixth.parquet"
    table = pq.read_table(gowalla.convert(name=whole) / "train.parquet")
    pq.write_table(table.filter([int(q) % 6 == 0 for q in table["query"].to_pylist()]), target)
    return {"data": {"kind": "table", "path": str(target)}, "split": {"kind": "random"}}


def _row(
    name: str,
    values: dict[str, Any],
    trials: int,
    seeds: Sequence[int],
    folder: Path,
    last: Sequence[str] = (),
) -> Row:
    kept = folder / f"{name.replace(', ', '-').replace(' ', '-')}.jsonl"
    runs = Runs(values, kept)
    recalls: dict[str, list[float]] = {}
    popularity = 0.0
    for objective, drawn in OBJECTIVES.items():
        settings = [[*own, *last] for own in _drawn(objective, drawn, trials)]
        best = max(settings, key=lambda own: runs.select(own, seeds[0]))
        tested = [runs.test(best, seed) for seed in seeds]
        recalls[objective] = [run[METRIC] for run in tested]
        popularity = mean(run["popularity"] for run in tested)
    return Row(name, recalls, popularity)


def _drawn(
    objective: str, draws: Callable[[random.Random], list[str]], trials: int
) -> Iterator[list[str]]:
    """Yield settings, the same ones in each call."""
    draw = random.Random(objective)
    for _ in range(trials):
        yield draws(draw)


def _strengths(draw: random.Random) -> list[str]:
    return [
        f"task.penalty={_between(draw, 1, 100):.3g}",
        f"task.l2={_between(draw, 0.003, 1):.3g}",
    ]


def _between(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def table(rows: Sequence[Row]) -> str:
    """Return the tables, and which data sets they lack."""
    lacking = [name for name in DATA if name not in {row.data for row in rows}]
    return f"{tables(rows)} Data that was not measured: {'; '.join(lacking) or 'none'}."
