"""Which loss for which data: the best of a small random search per objective, on several data sets.

Every objective gets the same number of random settings; the selection pairs of the first split
choose the best. Test pairs are used once per seed, and each seed has its own split. Results are
saved in benchmarks/kept/which-loss, so that an interrupted run can resume, even on another machine.
A loss counts as above or below the default on a data set if the 95 % interval of their difference,
over seeds and paired by split, excludes zero.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow.parquet as pq

from benchmarks import gowalla
from benchmarks.defaults import METRIC, Runs, half_interval, interval, one_thread, recipe_of
from benchmarks.tiny import recipes

TRIALS, SEEDS = 6, 3
DEFAULT = "squared"
FOLDER = gowalla.ROOT / "benchmarks" / "kept" / "which-loss"
DATA = (
    "amazon-musical-instruments",
    "movielens-latest-small",
    "wikispeedia",
    "gowalla, a sixth of the queries",
    "yelp2018, a sixth of the queries",
)
# Rates fall by about e² over sixty epochs; patience stops most trainings earlier.
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


OBJECTIVES: dict[str, Callable[[random.Random], list[str]]] = {
    "squared": _squared,
    "squared, solver": _solver,
    "softmax, unit rows": _unit,
    "softmax, unit rows, neighbours": _neighbours,
    "softmax, free rows": _free,
}


@dataclass(frozen=True)
class Row:
    """A data set: Recall@20 on the test pairs by objective, one value per seed, and popularity."""

    data: str
    recalls: Mapping[str, list[float]]
    popularity: float


def measure() -> list[Row]:
    """Return a row for each available data set."""
    with one_thread():
        return [
            _row(name, values_of(name), TRIALS, range(SEEDS), FOLDER)
            for name in DATA
            if available(name)
        ]


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
    """Return a recipe with the data and its split. For a published split, the training pairs are
    split again."""
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
    runs = Runs(values, folder / name.replace(", ", "-").replace(" ", "-"))
    recalls: dict[str, list[float]] = {}
    popularity = 0.0
    for objective, drawn in OBJECTIVES.items():
        draw = random.Random(objective)  # draws the same settings in each run
        settings = [[*drawn(draw), *last] for _ in range(trials)]
        best = max(settings, key=lambda own: runs.select(own, seeds[0]))
        tested = [runs.test(best, seed) for seed in seeds]
        recalls[objective] = [run[METRIC] for run in tested]
        popularity = mean(run["popularity"] for run in tested)
    return Row(name, recalls, popularity)


def _strengths(draw: random.Random) -> list[str]:
    return [
        f"task.penalty={_between(draw, 1, 100):.3g}",
        f"task.l2={_between(draw, 0.003, 1):.3g}",
    ]


def _between(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def table(rows: Sequence[Row]) -> str:
    """Return Recall@20 by data and objective, and the objectives that differ from the default."""
    lines = [f"| data | {' | '.join(OBJECTIVES)} | popularity |"]
    lines.append("|---" * (len(OBJECTIVES) + 2) + "|")
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for row in rows:
        cells = [interval(recalls, 4) for recalls in row.recalls.values()]
        lines.append(f"| {row.data} | {' | '.join(cells)} | {row.popularity:.4f} |")
        for name, recalls in row.recalls.items():
            pairs = zip(recalls, row.recalls[DEFAULT], strict=True)
            gains = [own - default for own, default in pairs]
            if abs(mean(gains)) > half_interval(gains):
                (above if mean(gains) > 0 else below).setdefault(name, []).append(row.data)
    everywhere = [name for name, where in above.items() if len(where) == len(rows)]
    lacking = [name for name in DATA if name not in {row.data for row in rows}]
    lines += [
        "",
        "± is half of the 95 % interval of the mean over seeds, each with a split of its own; "
        "objectives are compared on the same split.",
        "",
        f"Above {DEFAULT} by more than the interval: {_listed(above)}. "
        f"Below it by more than the interval: {_listed(below)}. "
        f"On all data: {', '.join(everywhere) or 'none, so the default stays'}. "
        f"Data that was not measured: {'; '.join(lacking) or 'none'}.",
    ]
    return "\n".join(lines)


def _listed(where: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{name} ({'; '.join(data)})" for name, data in where.items()) or "none"
