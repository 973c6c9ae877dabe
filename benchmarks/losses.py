"""Losses on observed pairs side by side, each with the best settings of a search of its own.

Every loss has as many settings drawn at random, chosen by the selection pairs of the first split;
test pairs are used once, for every seed, each with a split of its own. Results are kept in
build/losses, so that an interrupted run resumes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.defaults import KEPT, METRIC, Runs, interval, recipe_of
from benchmarks.tiny import recipes

DATA = "amazon-musical-instruments"
TRIALS, SEEDS = 8, 10
# The penalty keeps scores apart; or a partition function over all candidates does.
PENALISED = ["squared", "huber", "squared_hinge", "logistic"]
OVER_ALL = {
    "second-order softmax": ["task.kind=second_order"],
    "spherical, taylor": ["task.kind=spherical"],
}


@dataclass(frozen=True)
class Row:
    """A loss with its best settings, and the metric on the test pairs, by seed."""

    loss: str
    settings: str
    values: list[float]


@dataclass(frozen=True)
class Losses:
    """All losses on one data set."""

    rows: list[Row]
    popularity: list[float]


def measure() -> Losses:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(recipe_of(DATA), TRIALS, range(SEEDS), KEPT.parent / "losses")
    finally:
        torch.set_num_threads(threads)


def tiny() -> Losses:
    with recipes() as folder:
        values = {
            "data": {"kind": "table", "path": str(folder / "pairs.parquet")},
            "split": {"kind": "random", "share": 0.2},
            "model": {"dim": 4},
            "training": {"epochs": 1},
        }
        return _measure(values, 1, range(2), folder)


def _measure(values: dict[str, Any], trials: int, seeds: Sequence[int], kept: Path) -> Losses:
    rows, popularity = [], [0.0]
    for loss, drawn in spaces(trials).items():
        runs = Runs(values, kept / f"{loss.replace(', ', '-').replace(' ', '-')}.jsonl")
        best = max(drawn, key=lambda settings: runs.select(settings, seeds[0]))
        tested = [runs.test(best, seed) for seed in seeds]
        shown = [s.split(".", 1)[1] for s in best if s.split("=")[0] not in ("task.kind",)]
        hidden = ("loss=", "penalty=0", "query_measure=")
        words = ", ".join(s.replace("=", " ") for s in shown if not s.startswith(hidden))
        rows.append(Row(loss, words, [run[METRIC] for run in tested]))
        popularity = [run["popularity"] for run in tested]
    return Losses(rows, popularity)


def spaces(trials: int) -> dict[str, list[list[str]]]:
    """Return the settings drawn for each loss, always the same ones."""
    drawn = {
        loss: [[f"task.loss={loss}", *settings] for settings in _penalised(loss, trials)]
        for loss in PENALISED
    }
    for loss, kind in OVER_ALL.items():
        drawn[loss] = [[*kind, *settings] for settings in _over_all(loss, trials)]
    return drawn


def _penalised(name: str, trials: int) -> Iterator[list[str]]:
    draw = random.Random(name)
    for _ in range(trials):
        yield [f"task.penalty={_between(draw, 0.3, 100):.3g}", *_common(draw)]


def _over_all(name: str, trials: int) -> Iterator[list[str]]:
    draw = random.Random(name)
    for _ in range(trials):
        temperature = f"task.temperature={_between(draw, 0.05, 2):.3g}"
        yield ["task.penalty=0", "task.query_measure=1", temperature, *_common(draw)]


def _common(draw: random.Random) -> list[str]:
    return [
        f"task.l2={_between(draw, 0.003, 1):.3g}",
        f"training.table_rate={draw.choice([0.05, 0.1, 0.2])}",
    ]


def _between(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def table(losses: Losses) -> str:
    """Return a table of the losses, best first."""
    lines = [
        "| loss | best settings of the search | Recall@20 | / squared |",
        "|---|---|---|---|",
    ]
    (squared,) = (row.values for row in losses.rows if row.loss == "squared")
    for row in sorted(losses.rows, key=lambda r: -sum(r.values)):
        ratios = [a / b for a, b in zip(row.values, squared, strict=True)]
        ratio = "–" if row.loss == "squared" else interval(ratios, 3)
        lines.append(f"| {row.loss} | {row.settings} | {interval(row.values, 4)} | {ratio} |")
    lines.append(f"| popularity | – | {interval(losses.popularity, 4)} | – |")
    lines += [
        "",
        f"± is half of the 95 % interval of the mean over {len(losses.popularity)} seeds, each "
        "with a split of its own.",
    ]
    return "\n".join(lines)
