"""The loop's steps a second over those of the same model's bare step on batches in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from benchmarks.instrument.figures import Figure
from evergram.data.corpus import Corpus
from evergram.data.sampling import GATHERED, Batch
from evergram.encoders.features import SIDES, EntityInputs
from evergram.encoders.row_encoder import RowEncoder
from evergram.process_settings import while_training
from evergram.training.build import prepare
from evergram.training.loop import run_epoch
from evergram.training.optimizers import build_optimizers
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.recipe.training import StepSettings

# The least that the loop should reach of the bare step's rate.
GOAL = 0.85
BLOCKS = 5  # of rounds; their means are the repeated measurements of a figure


@dataclass(frozen=True)
class Model:
    kind: str
    dim: int
    batch: int

    def __str__(self) -> str:
        return f"{self.kind}, D = {self.dim}, B = {self.batch:,}"


MODELS = (
    *(Model("factorization", dim, batch) for dim in (32, 128) for batch in (1024, 8192)),
    Model("two_tower", 64, 4096),
)


@dataclass(frozen=True)
class Shape:
    """Of the corpus, which is drawn at random: what it holds does not change a step's time."""

    queries: int = 200_000
    candidates: int = 100_000
    pairs: int = 2_000_000


@dataclass(frozen=True)
class Rates:
    """Seconds of a step of one model, by block of rounds.

    Args:
        loop: of the loop without a penalty; bare: of its bare step.
        penalty: of the loop with the penalty that recipes have by default; step: of the same
            `Step` on batches in memory.
        busy: the same as `loop` and `bare`, by the processor's time.
    """

    loop: list[float]
    bare: list[float]
    penalty: list[float]
    step: list[float]
    busy_loop: list[float]
    busy_bare: list[float]


def measure(
    models: tuple[Model, ...] = MODELS, shape: Shape | None = None, rounds: int | None = None
) -> dict[Model, Rates]:
    """Measure each model; loop and bare steps take turns, one step each, in alternating order.

    Args:
        rounds: steps of each, by default in each block as many as are gathered at once.
    """
    shape = Shape() if shape is None else shape
    with while_training():
        return {
            m: _rates(m, shape, rounds or BLOCKS * max(12, GATHERED // m.batch)) for m in models
        }


def tiny() -> dict[Model, Rates]:
    return measure((Model("factorization", 4, 16),), Shape(30, 20, 400), rounds=5)


def table(measured: dict[Model, Rates]) -> str:
    lines = [
        "| model | bare step, ms | loop / bare, rates | by processor time | with the penalty: "
        "loop / step in memory | loop with the penalty / bare step without |",
        "|---|---|---|---|---|---|",
    ]
    for model, rates in measured.items():
        cells = (f"{_ratio(*pair):.2f}" for pair in _pairs(rates).values())
        lines.append(f"| {model} | {1000 * median(rates.bare):.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figures(measured: dict[Model, Rates]) -> list[Figure]:
    """Return the figures, each with one value a block of rounds."""
    rows = []
    for model, rates in measured.items():
        rows.append(Figure(str(model), "bare step", "ms", [1000 * t for t in rates.bare]))
        rows += [
            Figure(str(model), name, "ratio", [b / a for a, b in zip(*pair, strict=True)])
            for name, pair in _pairs(rates).items()
        ]
    return rows


def _pairs(rates: Rates) -> dict[str, tuple[list[float], list[float]]]:
    return {
        "loop over bare step": (rates.loop, rates.bare),
        "loop over bare step, processor time": (rates.busy_loop, rates.busy_bare),
        "loop with penalty over its step in memory": (rates.penalty, rates.step),
        "loop with penalty over bare step without": (rates.penalty, rates.bare),
    }


def _ratio(slow: list[float], fast: list[float]) -> float:
    return median(b / a for a, b in zip(slow, fast, strict=True))


@cache
def corpus_of(shape: Shape) -> Corpus:
    """Return a corpus of pairs drawn uniformly, its queries and candidates each at least once."""
    draw = torch.Generator().manual_seed(0)
    columns = {}
    for side, size in (("query", shape.queries), ("candidate", shape.candidates)):
        ids = torch.randint(size, (shape.pairs,), generator=draw)
        ids[:size] = torch.arange(size)
        columns[side] = ids.numpy()
    return Corpus.from_tables(pa.table(columns))


class BareStep:
    """Forward, ½(s − 1)², backward and optimiser of an encoder, on batches that are cut already."""

    def __init__(self, encoder: RowEncoder, settings: FitSettings, batches: list[Cut]) -> None:
        assert isinstance(settings.training, StepSettings)
        self.encoder = encoder
        self.optimizers = build_optimizers(encoder, settings.training, settings.table_rate)
        self.batches = batches
        self.place = 0

    def __call__(self) -> None:
        query, candidate, target = self.batches[self.place]
        self.place = (self.place + 1) % len(self.batches)
        scores = (
            self.encoder.embed("query", query) * self.encoder.embed("candidate", candidate)
        ).sum(-1)
        loss = 0.5 * (scores - target).square().mean()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()


Cut = tuple[EntityInputs, EntityInputs, Tensor]


class LoopStep:
    """One step of the loop a call, through as many epochs as are needed."""

    def __init__(self, model: Model, corpus: Corpus, settings: list[str]) -> None:
        recipe = Recipe.of(
            {
                "data": {"kind": "synthetic"},
                "model": {"kind": model.kind, "dim": model.dim},
                "task": {"l2": 0.0},
                "training": {"batch_size": model.batch},
            },
            settings,
        )
        self.settings = FitSettings.of(recipe, corpus, 0)
        self.device = torch.device("cpu")
        self.step, self.sampler, self.draws = prepare(self.settings, corpus, self.device)
        self.running = self._steps()

    def __call__(self) -> None:
        next(self.running)

    def _steps(self) -> Iterator[Any]:
        epoch = 0
        while True:
            yield from run_epoch(self.step, self.sampler, self.draws, epoch, self.device)
            epoch += 1

    def batches(self, count: int) -> list[Batch]:
        """Return the first batches of an epoch of their own, at most `count`."""
        return [b for _, b in zip(range(count), self.sampler.epoch(10**6), strict=False)]


def bare_of(loop: LoopStep, corpus: Corpus, count: int) -> BareStep:
    """Return the bare step of the same model at its start, on `count` batches that differ."""
    encoder = prepare(loop.settings, corpus, loop.device)[0].encoder
    assert isinstance(encoder, RowEncoder)
    inputs = encoder.read(corpus).inputs
    cut = [
        (
            inputs["query"].take(b.query),
            inputs["candidate"].take(b.candidate),
            torch.ones(len(b.query)),
        )
        for b in loop.batches(count)
    ]
    return BareStep(encoder, loop.settings, cut)


def _rates(model: Model, shape: Shape, rounds: int) -> Rates:
    corpus = corpus_of(shape)
    loop = LoopStep(model, corpus, ["task.penalty=0.0"])
    full = LoopStep(model, corpus, [])
    # The turns of another bare step with the penalty: the same `Step`, without the sampler.
    memory = _in_memory(LoopStep(model, corpus, []), rounds + 2)
    turns: list[Callable[[], None]] = [loop, bare_of(loop, corpus, rounds + 2), full, memory]
    wall: list[list[float]] = [[] for _ in turns]
    busy: list[list[float]] = [[] for _ in turns]
    for number in range(rounds + 5):
        for place in _order(number, len(turns)):
            started = time.perf_counter(), time.process_time()
            turns[place]()
            ended = time.perf_counter(), time.process_time()
            if number > 4:  # the first rounds warm up
                wall[place].append(ended[0] - started[0])
                busy[place].append(ended[1] - started[1])
    return Rates(*(_by_block(times) for times in (*wall, busy[0], busy[1])))


def _by_block(times: list[float]) -> list[float]:
    """Return the means of `BLOCKS` runs of steps: a median would hide what few steps pay for all,
    such as gathering the pairs of several batches."""
    size = len(times) // BLOCKS
    return [fmean(times[i * size : (i + 1) * size]) for i in range(BLOCKS)]


def _in_memory(loop: LoopStep, count: int) -> Callable[[], None]:
    """Return the turns of a loop's `Step` on `count` batches in memory."""
    batches = loop.batches(count + 1)
    draws = None
    if loop.draws is not None:
        drawn = (loop.draws[side].epoch(10**6, len(batches)) for side in SIDES)
        draws = [dict(zip(SIDES, pair, strict=True)) for pair in zip(*drawn, strict=True)]
    loop.step.begin_epoch()
    place = 0

    def step() -> None:
        nonlocal place
        here, following = place % len(batches), (place + 1) % len(batches)
        place += 1
        ahead: dict[str, Tensor] | None = None
        if loop.step.wants_before:
            ahead = {"query": batches[following].query, "candidate": batches[following].candidate}
            if draws is not None:
                ahead = {side: draws[following][side].ids for side in SIDES}
        loop.step(batches[here], None if draws is None else draws[here], ahead)

    return step


def _order(number: int, size: int) -> list[int]:
    shift = number % size
    return [(shift + i) % size for i in range(size)]
