"""The public splits of Gowalla and Yelp2018: the softmax over all candidates compared with the
squared loss, two tuned peers and published figures, with 64 dims and several seeds.

Our models are trained from recipes in recipes/. The softmax uses its last epoch; for the squared
loss, held-out training pairs choose the epoch. The test pairs are used once, at the end. Results
are saved in benchmarks/kept/published-splits, so that an interrupted run can resume, even on
another machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch

from benchmarks import gowalla, peers
from benchmarks.defaults import interval
from benchmarks.peers import METRICS
from benchmarks.records import Kept
from benchmarks.tiny import recipes
from evergram.data.split import Split
from evergram.training.build import final_split, load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.recipe import Recipe

KEPT = gowalla.ROOT / "benchmarks" / "kept" / "published-splits"
NAMES = ("gowalla", "yelp2018")
DIM = 64
SEEDS = 3
# One percent of the training pairs chooses the epoch. The softmax, which needs no choice, holds out
# a tenth of that.
SQUARED = ["split.share=0.01", "training.refit=false", "training.budget=300"]
# The softmax without pulled neighbours, whose rows are not rescaled.
ALONE = ["task.neighbour_share=0", "training.rescale_rows=false", "training.table_rate=0.04"]
# Recall@20 and NDCG@20 published by the authors, on these splits with 64 dims: docs/data-sets.md.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "gowalla": {
        "ENMF, published": (0.1523, 0.1315),
        "LightGCN, published": (0.1830, 0.1554),
        "SimpleX, published": (0.1872, 0.1557),
        "BSL, published (epoch chosen on the test part)": (0.1882, 0.1584),
    },
    "yelp2018": {
        "ENMF, published": (0.0624, 0.0515),
        "LightGCN, published": (0.0653, 0.0532),
        "SimpleX, published": (0.0701, 0.0575),
        "BSL, published (epoch chosen on the test part)": (0.0725, 0.0599),
    },
}


@dataclass(frozen=True)
class Row:
    """A method on one data set: each metric by seed, and training times in seconds."""

    data: str
    method: str
    dim: int | None  # D; None for a method without embeddings
    metrics: Mapping[str, list[float]]
    seconds: list[float]
    threads: Sequence[int] = ()  # threads of each training; empty means one


def published_splits() -> list[Row]:
    """Return one row per method, training with each seed unless the result is saved."""
    rows: list[Row] = []
    kept = Kept(KEPT)
    for name in NAMES:
        if gowalla.available(name):
            gowalla.convert(name=name)
            rows += _trained(name, DIM, _methods(name), range(SEEDS), kept)
            rows += _peers(name, range(SEEDS), kept)
            for method, values in PUBLISHED[name].items():
                figures = {m: [v] for m, v in zip(METRICS, values, strict=True)}
                rows.append(Row(name, method, DIM, figures, []))
    return rows


def tiny() -> list[Row]:
    """Train our methods on the tiny corpus for one epoch each."""
    with recipes() as folder:
        short = ["training.epochs=1", "training.batch_size=64", 'metrics=["recall@20", "ndcg@20"]']
        base = Recipe.load(folder / "given.toml", short)
        softmax = Recipe.of(base.model_dump(), ["task.kind=softmax_all", "model.normalize=true"])
        methods = {"SOGram": base, "softmax": softmax}
        return list(_trained("tiny", base.model.dim[0], methods, range(2), Kept(folder)))


def _methods(name: str) -> dict[str, Recipe]:
    path = gowalla.ROOT / "recipes" / f"{name}-softmax.toml"
    neighbours = Recipe.load(path, [f"model.dim={DIM}"])
    softmax = Recipe.of(neighbours.model_dump(), ALONE)
    data = [f"data.{key}={getattr(neighbours.data, key)}" for key in ("path", "test")]
    settings = [*SQUARED, *data, f"model.dim={DIM}"]
    squared = Recipe.load(gowalla.ROOT / "recipes" / "gowalla.toml", settings)
    return {
        "Evergram, softmax over all, neighbours pulled": neighbours,
        "Evergram, softmax over all candidates": softmax,
        "Evergram, squared loss, SOGram": squared,
    }


def _trained(
    name: str, dim: int, methods: Mapping[str, Recipe], seeds: range, kept: Kept
) -> Iterator[Row]:
    popular: dict[str, float] = {}
    for method, recipe in methods.items():
        runs = [_once(Recipe.of(recipe.model_dump(), [f"seed={s}"]), kept) for s in seeds]
        popular = runs[0]["popularity"]
        yield _row(name, method, dim, runs)
    if popular:
        yield Row(name, "popularity", None, {m: [popular[m]] for m in METRICS}, [])


def _once(recipe: Recipe, kept: Kept) -> dict[str, Any]:
    """Return a training's metrics, from the saved results if the recipe was trained before."""

    def train() -> dict[str, Any]:
        split = split_for(recipe, load_corpus(recipe), 0)
        fitted = fit_encoder(recipe, split, 0, RunContext(torch.device("cpu")))
        return {
            "model": dict(fitted.metrics["model"]),
            "popularity": dict(fitted.metrics["popularity"]),
            "seconds": fitted.seconds,
            "threads": torch.get_num_threads(),
            "epoch": fitted.best_epoch,
        }

    settings = recipe.model_dump_json(exclude={"upgrade"})
    return kept.get(settings.replace(str(gowalla.ROOT), ""), train)


def _peers(name: str, seeds: range, kept: Kept) -> Iterator[Row]:
    """Yield a row per peer, tuned on a tenth of the training pairs and then fitted to all."""
    if peers.wanting():
        return
    squared = _methods(name)["Evergram, squared loss, SOGram"]
    tuning = Recipe.of(squared.model_dump(), ["split.share=0.1"])

    for title, peer in peers.PEERS.items():
        about = f"{name} {DIM} {title} {peer.ranges} {peers.TRIALS}"
        split = split_for(tuning, load_corpus(tuning), 0)
        whole = final_split(split, refits=True)
        pairs, select = peers.matrix_of(split.training), partial(peers.selected, split)
        settings = kept.get(about, partial(peers.tune, peer, pairs, select, DIM))

        runs = [
            kept.get(f"{about} {seed}", partial(_fit, peer, whole, settings, seed))
            for seed in seeds
        ]
        yield _row(name, title, DIM, runs)


def _fit(
    peer: peers.Tuned, split: Split, settings: Mapping[str, float], seed: int
) -> dict[str, Any]:
    pairs = peers.matrix_of(split.training)
    result = peer.fit(pairs, settings, factors=DIM, seed=seed)
    return {"model": peers.judge(result, split, split.test), "seconds": result.seconds}


def _row(name: str, method: str, dim: int, runs: Sequence[Mapping[str, Any]]) -> Row:
    metrics = {m: [run["model"][m] for run in runs] for m in METRICS}
    threads = [run.get("threads", 1) for run in runs]
    return Row(name, method, dim, metrics, [run["seconds"] for run in runs], threads)


def table(rows: list[Row]) -> str:
    """Return a table of the methods, best first within each data set."""
    head = "| data | method | dims | Recall@20 | NDCG@20 | seeds | seconds of training | threads |"
    lines = [head, "|---" * 8 + "|"]
    order = [row.data for row in rows]
    for row in sorted(rows, key=lambda r: (order.index(r.data), -fmean(r.metrics[METRICS[0]]))):
        figures = " | ".join(interval(row.metrics[m], 4) for m in METRICS)
        seconds = "– | – | –"
        if row.seconds:
            by: dict[int, list[float]] = {}
            for taken, count in zip(
                row.seconds, row.threads or [1] * len(row.seconds), strict=True
            ):
                by.setdefault(count, []).append(taken)
            means = ", ".join(f"{fmean(own):.0f}" for _, own in sorted(by.items()))
            threads = ", ".join(map(str, sorted(by)))
            seconds = f"{len(row.seconds)} | {means} | {threads}"
        lines.append(f"| {row.data} | {row.method} | {row.dim or '–'} | {figures} | {seconds} |")
    return "\n".join([*lines, "", "± is half of the 95 % interval of the mean over seeds."])
