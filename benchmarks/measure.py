"""The recipe and the corpus that timings share; and the speed of reading one version as another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from statistics import median
from typing import Any

import torch

from evergram.compatibility.transforms import LinearTransform
from evergram.data.split import Split
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe

BASE: dict[str, Any] = {
    "data": {"kind": "synthetic", "queries": 20_000, "candidates": 10_000, "interactions": 200_000},
    "split": {"kind": "random"},
    "model": {"dim": 64},
    "task": {"l2": 0.0},
    "training": {"epochs": 1, "batch_size": 4096},
}


TINY = {
    **BASE,
    "data": {"kind": "synthetic", "queries": 100, "candidates": 60, "interactions": 2_000},
    "training": {"epochs": 1, "batch_size": 128},
}


def base(tiny: bool = False) -> dict[str, Any]:
    """Return the recipe that timings share."""
    return TINY if tiny else BASE


@cache
def base_split(tiny: bool = False) -> Split:
    """Return the split of `base`'s corpus, drawn once a process, because drawing takes long."""
    recipe = Recipe.of(base(tiny))
    return split_for(recipe, load_corpus(recipe), 0)


def view_throughput(dims: tuple[int, ...] = (64, 128), rows: int = 400_000) -> dict[str, float]:
    """Return vectors a second through a composed chain of three steps, over a bare matrix
    product."""
    from evergram.compatibility.chain import Chain

    ratios = {}
    for dim in dims:
        chain = Chain([LinearTransform(dim, dim) for _ in range(3)], dim)
        vectors = torch.randn(rows, dim)
        matrix = chain.matrix(3, 0).float()

        def through(chain: Chain = chain, vectors: torch.Tensor = vectors) -> None:
            chain.apply(vectors, 3, 0)

        def bare(vectors: torch.Tensor = vectors, matrix: torch.Tensor = matrix) -> None:
            vectors @ matrix.T

        ratios[f"D = {dim}"] = median(a / b for a, b in _pairs(bare, through))
    return ratios


def table(ratios: dict[str, float]) -> str:
    lines = [
        "| transform through a chain of three | rate over a bare matrix product |",
        "|---|---|",
    ]
    lines += [f"| {name} | {ratio:.2f} |" for name, ratio in ratios.items()]
    return "\n".join(lines)


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
