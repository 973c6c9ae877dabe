"""Which loss for which data: each objective's best of a small search, on data of several kinds.

Every objective has as many settings drawn at random, chosen by the selection pairs of the first
split; test pairs are used once, for every seed, each with a split of its own. Results are kept in
build/which-loss, so that an interrupted run resumes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow.parquet as pq
import torch

from benchmarks import gowalla
from benchmarks.defaults import KEPT, METRIC, Runs, interval, recipe_of
from benchmarks.tiny import recipes
from evergram.data.corpus import Corpus

TRIALS, SEEDS = 6, 3
FOLDER = KEPT.parent / "which-loss"
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
    "softmax, free rows": _free,
    "softmax, 256 clusters": _clusters,
    "second-order softmax": _second_order,
}


@dataclass(frozen=True)
class Kind:
    """What a data set is like.

    Args:
        pairs: interactions.
        per_query: the median number of a query's.
        top: share of the interactions that the most popular hundredth of the candidates has.
    """

    queries: int
    candidates: int
    pairs: int
    per_query: float
    top: float

    @classmethod
    def of(cls, corpus: Corpus) -> Kind:
        counts = corpus.counts("candidate").sort(descending=True).values
        return cls(
            len(corpus.queries),
            len(corpus.candidates),
            len(corpus),
            float(corpus.counts("query").float().median()),
            float(counts[: math.ceil(len(counts) / 100)].sum() / len(corpus)),
        )


@dataclass(frozen=True)
class Row:
    """A data set: Recall@20 on the test pairs by objective, a value a seed; and popularity's."""

    data: str
    kind: Kind
    recalls: Mapping[str, list[float]]
    popularity: float


def measure(data: Sequence[str] = DATA) -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(n, values_of(n), TRIALS, range(SEEDS), FOLDER) for n in data if available(n)]
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
    runs = Runs(values, folder / f"{name.replace(', ', '-').replace(' ', '-')}.jsonl")
    recalls: dict[str, list[float]] = {}
    popularity = 0.0
    for objective, drawn in OBJECTIVES.items():
        settings = [[*own, *last] for own in _drawn(objective, drawn, trials)]
        best = max(settings, key=lambda own: runs.select(own, seeds[0]))
        tested = [runs.test(best, seed) for seed in seeds]
        recalls[objective] = [run[METRIC] for run in tested]
        popularity = mean(run["popularity"] for run in tested)
    return Row(name, Kind.of(runs.corpus), recalls, popularity)


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
    """Return Recall@20 by data and objective, and what the data is like."""
    names = list(OBJECTIVES)
    lines = [
        f"| data | {' | '.join(names)} | popularity |",
        "|---" * (len(names) + 2) + "|",
    ]
    for row in rows:
        cells = [interval(row.recalls[name], 4) for name in names]
        lines.append(f"| {row.data} | {' | '.join(cells)} | {row.popularity:.4f} |")
    lines += [
        "",
        "| data | queries × candidates | pairs | a query's pairs, median "
        "| pairs of the most popular 1 % | softmax, unit rows / best of squared |",
        "|---" * 6 + "|",
    ]
    for row in rows:
        kind = row.kind
        squared = max((row.recalls[n] for n in ("squared", "squared, solver")), key=mean)
        ratios = [a / b for a, b in zip(row.recalls["softmax, unit rows"], squared, strict=True)]
        lines.append(
            f"| {row.data} | {kind.queries:,} × {kind.candidates:,} | {kind.pairs:,} "
            f"| {kind.per_query:.0f} | {kind.top:.0%} | {interval(ratios, 3)} |"
        )
    seeds = len(rows[0].recalls["squared"])
    lines += [
        "",
        f"± is half of the 95 % interval of the mean over {seeds} seeds, each with a split of its "
        "own; ratios are of the same split.",
    ]
    return "\n".join(lines)
