"""The softmax over all candidates on the public splits of Gowalla and Yelp2018, over seeds.

Each model is one training of a recipe in recipes/; its epoch is chosen by training pairs that were
held out, and the test part is ranked once, at its end. Results are kept in build/published-splits,
so that an interrupted run resumes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import gowalla
from benchmarks.defaults import interval
from benchmarks.quality import METRICS
from benchmarks.tiny import recipes
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.recipe import Recipe

NAMES = ("gowalla", "yelp2018")
SEEDS = 3
# The same pairs for training and for choosing the epoch as the softmax has.
LIKE_SOFTMAX = ["split.share=0.01", "training.refit=false", "training.budget=300"]
# Recall@20 and NDCG@20 by their authors, on exactly these splits with 64 dims: docs/data-sets.md.
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
    """A method on one data set: each metric by seed, and seconds of training."""

    data: str
    method: str
    metrics: Mapping[str, list[float]]
    seconds: list[float]


def published_splits() -> list[Row]:
    """Train every method with every seed, one by one."""
    rows: list[Row] = []
    for name in NAMES:
        if gowalla.available(name):
            gowalla.convert(name=name)
            rows += _rows(name, gowalla.ROOT / "recipes", range(SEEDS), gowalla.ROOT / "build")
    return rows


def tiny() -> list[Row]:
    """Train our methods on the tiny corpus, each for an instant."""
    with recipes() as folder:
        short = ["training.epochs=1", "training.batch_size=64", 'metrics=["recall@20", "ndcg@20"]']
        base = Recipe.load(folder / "given.toml", short)
        softmax = Recipe.of(base.model_dump(), ["task.kind=softmax_all", "model.normalize=true"])
        methods = {"SOGram": base, "softmax": softmax}
        return list(_trained("tiny", methods, range(2), folder))


def _rows(name: str, folder: Path, seeds: range, build: Path) -> Iterator[Row]:
    softmax = Recipe.load(folder / f"{name}-softmax.toml")
    data = [f"{key}={getattr(softmax.data, key)}" for key in ("path", "test")]
    squared = Recipe.load(
        folder / "gowalla.toml", [*LIKE_SOFTMAX, *(f"data.{text}" for text in data)]
    )
    methods = {
        "Evergram, softmax over all candidates": softmax,
        "Evergram, squared loss, SOGram": squared,
    }
    yield from _trained(name, methods, seeds, build / "published-splits")
    for method, values in PUBLISHED[name].items():
        yield Row(name, method, {m: [v] for m, v in zip(METRICS, values, strict=True)}, [])


def _trained(name: str, methods: Mapping[str, Recipe], seeds: range, kept: Path) -> Iterator[Row]:
    popular: dict[str, float] = {}
    for method, recipe in methods.items():
        runs = [_once(Recipe.of(recipe.model_dump(), [f"seed={s}"]), kept) for s in seeds]
        metrics = {m: [run["model"][m] for run in runs] for m in METRICS}
        popular = runs[0]["popularity"]
        yield Row(name, method, metrics, [run["seconds"] for run in runs])
    yield Row(name, "popularity", {m: [popular[m]] for m in METRICS}, [])


def _once(recipe: Recipe, kept: Path) -> dict[str, Any]:
    """Return a training's metrics: from `kept` where the same recipe was trained before."""
    text = recipe.model_dump_json(exclude={"upgrade", "compare"})
    path = kept / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not path.is_file():
        split = split_for(recipe, load_corpus(recipe), 0)
        fitted = fit_encoder(recipe, split, 0, RunContext(torch.device("cpu")))
        record = {
            "model": dict(fitted.metrics["model"]),
            "popularity": dict(fitted.metrics["popularity"]),
            "seconds": fitted.seconds,
            "epoch": fitted.best_epoch,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def table(rows: list[Row]) -> str:
    """Return a table of the methods, best first within each data set."""
    lines = [
        "| data | method | Recall@20 | NDCG@20 | seconds of training |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row.data for row in rows):
        own = [row for row in rows if row.data == name]
        for row in sorted(
            own, key=lambda r: -sum(r.metrics[METRICS[0]]) / len(r.metrics[METRICS[0]])
        ):
            figures = " | ".join(interval(row.metrics[m], 4) for m in METRICS)
            seconds = f"{sum(row.seconds) / len(row.seconds):.0f}" if row.seconds else "–"
            lines.append(f"| {name} | {row.method} | {figures} | {seconds} |")
    lines += ["", "± is half of the 95 % interval of the mean over seeds."]
    return "\n".join(lines)
