"""Training time until our models reach the Recall@20 of implicit ALS, relative to ALS's time.

ALS uses the settings of `benchmarks.peers`. The target is its recall on the selection pairs (of at
most `QUERIES` queries), on which all models are measured. Our models use the recipe of the data,
including λ and l2, and their time includes initialisation. Models run one after the other on one
thread; seconds are processor time, so other programs do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks import peers
from benchmarks.defaults import of_some_queries, one_thread
from benchmarks.peers import Result, implicit_als
from benchmarks.tiny import recipes
from evergram.data.split import Split
from evergram.encoders.encoder import SIDES
from evergram.process_settings import while_training
from evergram.training.build import FitSettings, load_corpus, prepare, split_for
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe

METRIC = "recall@20"
DATA = ("movielens", "gowalla")
# Number of queries whose selection pairs are used.
QUERIES = 3000
# A model is stopped if it has not reached the target after this many times ALS's seconds.
PATIENCE = 8
CPU = torch.device("cpu")
METHODS = {
    'optimizer = "als"': ["training.optimizer=als"],
    'optimizer = "adaptive" (the default)': [],
}


@dataclass(frozen=True)
class Row:
    """A model on one data set."""

    data: str
    method: str
    seconds: float | None  # processor time until it reached ALS's recall; None if it did not
    ratio: float | None  # seconds divided by ALS's seconds
    best: float  # the best recall before it was stopped
    spent: float  # seconds until it was stopped


def measure() -> list[Row]:
    rows = []
    for name in DATA:
        recipe, split = peers.load(name)
        rows += _measure(name, recipe, split, peers.SETTINGS[name])
    return rows


def tiny() -> list[Row]:
    with recipes() as folder:
        recipe = Recipe.load(folder / "random.toml")
        split = split_for(recipe, load_corpus(recipe), 0)
        return _measure("tiny", recipe, split, {"alpha": 2, "regularization": 1, "iterations": 2})


def _measure(data: str, recipe: Recipe, split: Split, settings: dict[str, float]) -> list[Row]:
    pairs = of_some_queries(split.selection, QUERIES)

    def recall(result: Result) -> float:
        return peers.judge(result, split, pairs)[METRIC]

    with one_thread(), while_training():
        dim = recipe.model.dim_of(0)
        matrix = peers.matrix_of(split.training)
        fitted = implicit_als(matrix, settings, factors=dim, clock=time.process_time)
        own, target = fitted.seconds, recall(fitted)
        words = f"implicit ALS, {settings['iterations']:g} iterations"
        rows = [Row(data, words, own, 1.0, target, own)]
        for method, overrides in METHODS.items():
            chosen = Recipe.of(recipe.model_dump(), overrides)
            reached, best, spent = None, 0.0, 0.0
            for spent, value in _curve(chosen, split, recall):
                best = max(best, value)
                if value >= target:
                    reached = spent
                if reached is not None or spent > PATIENCE * own:
                    break
            ratio = None if reached is None else reached / own
            rows.append(Row(data, method, reached, ratio, best, spent))
    return rows


def _curve(
    recipe: Recipe, split: Split, recall: Callable[[Result], float]
) -> Iterator[tuple[float, float]]:
    """Yield the processor time so far and the recall after each epoch."""
    corpus = split.training
    started = time.process_time()
    step, sampler, draws = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
    seconds = time.process_time() - started

    def value() -> float:
        query, candidate = (getattr(step.encoder, side).weight.detach() for side in SIDES)
        return recall(Result(query, candidate, seconds))

    for epoch in range(recipe.training.epochs):
        started = time.process_time()
        for _ in run_epoch(step, sampler, draws, epoch, CPU):
            pass
        seconds += time.process_time() - started
        yield seconds, value()


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| data | model | seconds to ALS's recall | / ALS's own | best recall@20, after |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        seconds = "not reached" if row.seconds is None else f"{row.seconds:.2f}"
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(
            f"| {row.data} | {row.method} | {seconds} | {ratio} | {row.best:.4f}, "
            f"{row.spent:.2f} s |"
        )
    return "\n".join(lines)
