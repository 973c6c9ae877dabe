"""A training step whose freed tensors stay with the process, over one whose are given back.

The steps are of Gowalla's softmax over all candidates, whose tables are larger the more dims there
are. One training takes them in turns, so that it is the same step, of the same process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from statistics import median

import torch

from benchmarks import gowalla
from benchmarks.published_splits import softmax_recipe
from benchmarks.tiny import recipes
from evergram.process_settings import kept_memory, no_denormals
from evergram.training.build import prepare
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

DIMS = (64, 256, 512)
STEPS, WARM = 4, 2


@dataclass(frozen=True)
class Row:
    """Medians of a step.

    Args:
        table: bytes of the candidates' table.
        kept, given_back: milliseconds.
        faults, faults_back: pages that the system made.
    """

    dim: int
    table: int
    kept: float
    given_back: float
    faults: float
    faults_back: float


def measure(dims: Sequence[int] = DIMS, rounds: int = 5) -> list[Row]:
    gowalla.convert()
    return [_measured(softmax_recipe("gowalla", dim), rounds) for dim in dims]


def tiny() -> list[Row]:
    with recipes() as folder:
        settings = ["task.kind=softmax_all", "model.normalize=true"]
        return [_measured(Recipe.load(folder / "given.toml", settings), 1)]


def _measured(recipe: Recipe, rounds: int) -> Row:
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    step, sampler, draws = prepare(FitSettings.of(recipe, corpus, 0), corpus, torch.device("cpu"))

    def steps() -> Iterator[object]:
        for epoch in range(10**6):
            yield from run_epoch(step, sampler, draws, epoch, torch.device("cpu"))

    running = steps()
    times: dict[bool, list[float]] = {True: [], False: []}
    faults: dict[bool, list[float]] = {True: [], False: []}
    with no_denormals():
        for number in range(2 * rounds):
            keeps = number % 2 == 0
            with kept_memory() if keeps else nullcontext():
                list(islice(running, WARM))
                before, started = _faults(), time.perf_counter()
                list(islice(running, STEPS))
                times[keeps].append(1000 * (time.perf_counter() - started) / STEPS)
                faults[keeps].append((_faults() - before) / STEPS)
    table = 4 * len(corpus.candidates) * recipe.model.dim_of(0)
    return Row(
        recipe.model.dim_of(0),
        table,
        *(median(times[keeps]) for keeps in (True, False)),
        *(median(faults[keeps]) for keeps in (True, False)),
    )


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| dims | candidates' table, MB | a step, ms | over one that gives memory back "
        "| new pages a step | of one that gives memory back |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.dim} | {r.table / 1e6:.0f} | {r.kept:.0f} | {r.kept / r.given_back:.2f} "
        f"| {r.faults:,.0f} | {r.faults_back:,.0f} |"
        for r in rows
    ]
    lines += ["", f"{torch.get_num_threads()} thread(s)."]
    return "\n".join(lines)
