"""The cost of the penalty: the time of a training step relative to a step without the penalty."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from evergram.data.corpus import Corpus
from evergram.process_settings import while_training
from evergram.training.build import FitSettings, load_corpus, prepare, split_for
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import AdaptiveTraining

BASE: dict[str, Any] = {
    "data": {"kind": "synthetic", "queries": 20_000, "candidates": 10_000, "interactions": 200_000},
    "split": {"kind": "random"},
    "model": {"dim": 64},
    "task": {"l2": 0.0},
    "training": {"epochs": 1, "batch_size": 4096},
}
TINY: dict[str, Any] = {
    **BASE,
    "data": {"kind": "synthetic", "queries": 100, "candidates": 60, "interactions": 2_000},
    "training": {"epochs": 1, "batch_size": 128},
}
ENCODERS = {
    "factorization": [],
    "two_tower": ["model.kind=two_tower"],
    "two_tower, hidden 512, 512": ["model.kind=two_tower", "model.hidden=[512, 512]"],
}
NONE = "no penalty"
LIMITS = ("products", "products, weights and gradient")
SOGRAM = "SOGram, previous batch"
VARIANTS = {
    SOGRAM: [],
    # The default l2 of recipes; all other rows have no l2.
    "SOGram, previous batch, and l2": ["task.l2=0.02", 'task.l2_measure="penalty"'],
    "SOGram, independent batch": ["gramian.sampler=linear"],
    "SAGram 1/n": ["gramian.kind=sagram"],
    "SAGram 1": ["gramian.kind=sagram", "gramian.beta='1'"],
    "exact": ["gramian.kind=exact"],
}
# The penalty alone, and with the default preconditioner of recipes.
PRECONDITIONS = {"alone": 0.0, "preconditioned": AdaptiveTraining().precondition}
STEPS = 4  # consecutive steps of one variant per round


@dataclass(frozen=True)
class StepRatios:
    """The cost of the penalty."""

    milliseconds: dict[str, float]  # time of a step without a penalty, by encoder
    # 1 + the time of the four matrix products of 2 B D² operations that every Gramian needs (S_B
    # and Ĝ u on both sides), relative to that step, by encoder.
    products: dict[str, float]
    # The same including the weights of rows, the value, and adding the gradient: the minimum for
    # any penalty on a batch.
    least: dict[str, float]
    # Step time relative to that step, by encoder, variant and `PRECONDITIONS`.
    ratios: dict[str, dict[str, dict[str, float]]]


def step_ratios(
    rounds: int = 25, encoders: Sequence[str] = tuple(ENCODERS), recipe: dict[str, Any] = BASE
) -> StepRatios:
    """Return the median over rounds of step time relative to a step without a penalty.

    In each round, every variant takes a few steps, in rotating order. The bare products take turns
    too, so that their rows are as cold in the cache as those of a step. A step is one iteration of
    the training loop, including cutting the batch; drawing the epoch's order and evaluations are
    not measured.
    """
    whole = Recipe.of(recipe)
    corpus = split_for(whole, load_corpus(whole), 0).training
    result = StepRatios({}, {}, {}, {})
    for encoder in encoders:
        names = [(v, c) for v in VARIANTS for c in PRECONDITIONS]
        model = ENCODERS[encoder]
        turns: dict[tuple[str, str], Turns | Products] = {
            (NONE, ""): Turns(recipe, corpus, [*model, "task.penalty=0.0"]),
            (LIMITS[0], ""): Products(recipe, whole=False),
            (LIMITS[1], ""): Products(recipe, whole=True),
        }
        for variant, column in names:
            settings = [*VARIANTS[variant], f"training.precondition={PRECONDITIONS[column]}"]
            turns[variant, column] = Turns(recipe, corpus, [*model, *settings])
        with while_training():
            times = interleaved(turns, rounds)
        bare = times[NONE, ""]
        result.milliseconds[encoder] = 1000 * median(bare)
        result.products[encoder], result.least[encoder] = (
            1 + median(times[limit, ""]) / median(bare) for limit in LIMITS
        )
        ratios: dict[str, dict[str, float]] = {v: {} for v in VARIANTS}
        for variant, column in names:
            pairs = zip(times[variant, column], bare, strict=True)
            ratios[variant][column] = median(t / b for t, b in pairs)
        result.ratios[encoder] = ratios
    return result


def tiny() -> StepRatios:
    return step_ratios(1, ("factorization",), TINY)


def table(measured: StepRatios) -> str:
    encoders = list(measured.ratios)
    columns = [(e, c) for e in encoders for c in PRECONDITIONS]
    lines = [
        "| step of training | " + " | ".join(f"{e}, {c}" for e, c in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, limit in zip(LIMITS, (measured.products, measured.least), strict=True):
        cells = " | ".join(f"{limit[e]:.2f} | –" for e in encoders)
        lines.append(f"| the bare matrix {name} | {cells} |")
    for variant in VARIANTS:
        cells = " | ".join(f"{measured.ratios[e][variant][c]:.2f}" for e, c in columns)
        lines.append(f"| {variant} | {cells} |")
    bare = " and ".join(f"{ms:.1f} ms ({e})" for e, ms in measured.milliseconds.items())
    threads = torch.get_num_threads()
    lines += ["", f"Without a penalty a step takes {bare}, on {threads} thread(s)."]
    return "\n".join(lines)


class Products:
    """Only 2 × (Uᵀ U + U G), at the recipe's batch size and dim.

    Args:
        whole: also weight the rows, compute the value ⟨Uᵀ U, G⟩, and add to a gradient.
    """

    def __init__(self, values: dict[str, Any], whole: bool) -> None:
        dim, size = Recipe.of(values).model.dim_of(0), values["training"]["batch_size"]
        self.whole = whole
        self.matrix, self.weights = torch.randn(dim, dim), torch.rand(size, 1)
        self.sides = [(torch.randn(size, dim), torch.zeros(size, dim)) for _ in range(2)]

    def take(self) -> float:
        """Return the time in seconds."""
        started = time.perf_counter()
        for rows, gradient in self.sides:
            if not self.whole:
                rows.T @ rows
                rows @ self.matrix
                continue
            weighted = rows * self.weights
            moment = weighted.T @ rows
            (moment * self.matrix).sum()
            gradient.add_(weighted @ self.matrix)
        return time.perf_counter() - started


class Turns:
    """A training that takes a few steps whenever its turn comes."""

    def __init__(self, recipe: dict[str, Any], corpus: Corpus, settings: list[str]) -> None:
        self.device = torch.device("cpu")
        fit_settings = FitSettings.of(Recipe.of(recipe, settings), corpus, 0)
        self.step, self.sampler, self.draws = prepare(fit_settings, corpus, self.device)
        self.epoch = 0
        self.running: Iterator[object] = iter(())
        self.left = 0

    def take(self) -> float:
        """Take `STEPS` steps and return the seconds per step."""
        # Skip the last step of an epoch, which does not prefetch a batch.
        if self.left <= STEPS:
            self.running = iter(
                run_epoch(self.step, self.sampler, self.draws, self.epoch, self.device)
            )
            self.epoch += 1
            next(self.running)
            self.left = len(self.sampler) - 1
        started = time.perf_counter()
        for _ in range(STEPS):
            next(self.running)
        self.left -= STEPS
        return (time.perf_counter() - started) / STEPS


def interleaved(
    turns: Mapping[tuple[str, str], Turns | Products], rounds: int
) -> dict[tuple[str, str], list[float]]:
    times: dict[tuple[str, str], list[float]] = {name: [] for name in turns}
    names = list(turns)
    for number in range(rounds + 2):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            taken = turns[name].take()
            if number > 1:  # the first rounds warm up
                times[name].append(taken)
    return times
