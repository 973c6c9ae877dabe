"""Queries that are means of their candidates beside queries with a table, by two objectives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import gowalla
from benchmarks.defaults import interval
from benchmarks.tiny import recipes
from benchmarks.towers import Clock
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.recipe import Recipe

RECIPE = gowalla.ROOT / "recipes" / "movielens.toml"
METRICS = ("recall@20", "ndcg@20")
MEANS = "model.kind=mean_of_candidates"
# A batch of 8,192 and Adam, as the recipe's Adagrad makes each row's first steps as long as a
# table's, although every row is in most means. The rate is the better of two, λ the best of three.
SQUARED_MEANS = [
    *(MEANS, "training.optimizer=adam", "training.table_rate=0.004"),
    "training.batch_size=8192",
]
SOFTMAX = [
    *("task={kind='softmax_all',temperature=0.1}", "model.normalize=true"),
    "training={epochs=60,patience=3}",
]
RUNS = {
    ("a table", "squared loss, penalty"): ["training.epochs=25"],
    ("means", "squared loss, penalty"): ["training.epochs=25", *SQUARED_MEANS],
    ("a table", "softmax over all"): SOFTMAX,
    ("means", "softmax over all"): [*SOFTMAX, MEANS],
}


def section() -> str:
    return _table(RECIPE, [], range(3))


def tiny() -> str:
    with recipes() as folder:
        return _table(folder / "random.toml", ["model.dim=4", "training.epochs=2"], range(2))


def _table(path: Path, last: Sequence[str], seeds: Sequence[int]) -> str:
    """Return a table of each run's metrics over seeds, and its CPU seconds on one thread.

    Args:
        last: overrides after those of the runs.
    """
    lines = [
        "| queries | trained by | Recall@20 | NDCG@20 | CPU seconds |",
        "|---|---|---|---|---|",
    ]
    base = Recipe.load(path, ["model.dim=64"])
    split = split_for(base, load_corpus(base), 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for (queries, way), overrides in RUNS.items():
        values: dict[str, list[float]] = {metric: [] for metric in METRICS}
        seconds = []
        for seed in seeds:
            own = ["model.dim=64", f'metrics=["{METRICS[0]}", "{METRICS[1]}"]', f"seed={seed}"]
            clock = Clock()
            recipe = Recipe.load(path, [*own, *overrides, *last])
            context = RunContext(torch.device("cpu"), callbacks=[clock])
            trained = fit_encoder(recipe, split, 0, context)
            seconds.append(clock.seconds_by_epoch[trained.best_epoch])
            for metric, kept in values.items():
                kept.append(trained.metrics["model"][metric])
        cells = " | ".join(interval(kept, 4) for kept in values.values())
        lines.append(f"| {queries} | {way} | {cells} | {interval(seconds, 0)} |")
    torch.set_num_threads(threads)
    lines += ["", f"± is half of the 95 % interval of the mean over {len(seeds)} seeds."]
    return "\n".join(lines)
