"""Timings in one process, as ratios of steps that differ in one thing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

import torch

from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import train_encoder
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe

BASE = {
    "data": {"kind": "synthetic", "queries": 20_000, "candidates": 10_000, "interactions": 200_000},
    "split": {"kind": "random"},
    "model": {"dim": 64},
    "training": {"epochs": 1, "batch_size": 4096},
}
VARIANTS = {
    "no penalty": ["task.penalty=0.0"],
    "SOGram (previous batch)": [],
    "exact Gramian": ["gramian.kind=exact"],
}


def step_times(rounds: int = 5) -> dict[str, float]:
    """Median seconds of an epoch over that without a penalty, the variants in turn each round."""
    recipes = {name: Recipe.of(BASE, overrides) for name, overrides in VARIANTS.items()}
    first = next(iter(recipes.values()))
    split = split_for(first, load_corpus(first), 0)
    quiet = Progress(quiet=True)

    def epoch(recipe: Recipe) -> float:
        return train_encoder(recipe, split, 0, torch.device("cpu"), quiet).seconds

    for recipe in recipes.values():
        epoch(recipe)
    found: dict[str, list[float]] = {name: [] for name in recipes}
    for _ in range(rounds):
        for name, recipe in recipes.items():
            found[name].append(epoch(recipe))
    base = found["no penalty"]
    return {
        name: median(t / b for t, b in zip(times, base, strict=True))
        for name, times in found.items()
    }


def view_throughput(dims: tuple[int, ...] = (64, 128), rows: int = 400_000) -> dict[str, float]:
    """Vectors a second through a composed chain of three steps, over a bare matrix product."""
    from evergram.compatibility.chain import Chain

    ratios = {}
    for dim in dims:
        chain = Chain([torch.randn(dim, dim) for _ in range(3)], dim)
        vectors = torch.randn(rows, dim)
        matrix = chain.matrix(3, 0).float()

        def through(chain: Chain = chain, vectors: torch.Tensor = vectors) -> None:
            chain.apply(vectors, 3, 0)

        def bare(vectors: torch.Tensor = vectors, matrix: torch.Tensor = matrix) -> None:
            vectors @ matrix.T

        ratios[f"D = {dim}"] = median(a / b for a, b in _pairs(bare, through))
    return ratios


def _pairs(
    first: Callable[[], None], second: Callable[[], None], rounds: int = 7
) -> Iterator[tuple[float, float]]:
    for round_ in range(rounds + 1):
        times = []
        for action in (first, second):
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
        if round_:  # the first warms up
            yield times[0], times[1]
