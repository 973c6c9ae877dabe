"""A step's seconds and bytes as the model of them predicts, over those of runs that fit here."""

from __future__ import annotations

import ctypes
import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from benchmarks.scale_model import (
    FLOAT,
    Cluster,
    Size,
    StepRates,
    fewest_machines,
    gathered_batch,
    memory,
    plan,
    seconds,
)
from evergram.data.corpus import Corpus
from evergram.data.sampling import GATHERED
from evergram.encoders.features import SIDES
from evergram.process_settings import no_denormals
from evergram.training.build import FitSettings, prepare
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe

SIZES = (
    Size(100_000, 1_000_000, 32, 1024),
    Size(100_000, 1_000_000, 128, 8192),
    Size(1_000_000, 1_000_000, 32, 8192),
    Size(1_000_000, 1_000_000, 128, 1024),
    Size(4_000_000, 2_000_000, 128, 8192),
    Size(10_000_000, 5_000_000, 32, 8192),
)
# What docs/internet-scale.md asks for: its rates are measured at the largest size of its dim.
GOAL = Size(10**9, 10**11, 128, 8192)
TIMES = (1, 4, 16)  # the fewest machines that hold the tables, and more
# The plain penalty of [G2], whose Gramians are D² floats a side.
SETTINGS = ["gramian.kind=sogram", "gramian.rate=0.05", "training.precondition=0.0"]
BLOCKS = 3
EVICTING = 8 * 2**20  # bytes, more than a core's own caches
# Blocks [B, D] of each side that a step holds until its backward pass is done: most are in no cache
# of the core's own when they are read, and new ones are not written where the last was freed.
ALIVE = 6
CPU = torch.device("cpu")
FEW = 8  # pairs of the step that measures what its calls cost


@dataclass(frozen=True)
class Checked:
    """One size.

    Args:
        rates: in each block, as they were between its steps.
        steps: seconds of a step, in each block, by the processor's time.
        resident: bytes by which the process grew from before the corpus to after some steps.
    """

    size: Size
    rates: list[StepRates]
    steps: list[float]
    resident: int

    @property
    def ratios(self) -> list[float]:
        """Predicted seconds over measured ones, by block."""
        return [seconds(self.size, r) / s for r, s in zip(self.rates, self.steps, strict=True)]

    @property
    def bytes_ratio(self) -> float:
        return sum(memory(self.size).values()) / self.resident


def measure(sizes: tuple[Size, ...] = SIZES) -> list[Checked]:
    """Measure each size: its rates one by one, and its steps, in turns."""
    # Each in a process of its own, whose memory no other size has used.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as workers:
        return list(workers.map(_checked, sizes))


def tiny() -> list[Checked]:
    return measure((Size(2000, 4000, 4, 64),))


def table(measured: list[Checked]) -> str:
    """Return what the goal takes by the measured rates, and how near the model of it comes here."""
    of_dim = [one for one in measured if one.size.dim == GOAL.dim] or measured
    largest = max(of_dim, key=lambda one: sum(memory(one.size).values()))
    return "\n\n".join([_bytes(), _plans(largest), _checks(measured)])


def _bytes() -> str:
    sizes = memory(GOAL)
    sizes["all but pairs and order"] = sum(
        size for name, size in sizes.items() if name not in ("pairs", "order of an epoch")
    )
    lines = ["| of | GB |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | {size / 1e9:,.4g} |" for name, size in sizes.items()])


def _plans(source: Checked) -> str:
    c = Cluster()
    names = StepRates.__dataclass_fields__
    rates = StepRates(*(median(getattr(each, n) for each in source.rates) for n in names))
    lines = [
        f"Assumed of a machine, not measured: {c.memory / 2**30:.0f} GiB for tables, {c.processes} "
        f"processes on a core each, {c.bandwidth / 1e9:.0f} GB a second of memory that they share, "
        f"and a network of {c.network * 8 / 1e9:.0f} Gbit a second. A process has a batch of "
        f"{GOAL.batch:,} pairs and the rates that were measured for {source.size}.",
        "",
        "| machines | processes | ms a step: processor | memory | network | hours an epoch | MB a "
        "process sends a step: rows, gradients, ids | of Gramians | MB if all embeddings of the "
        "batch were gathered |",
        "|" + "---|" * 9,
    ]
    for machines in (fewest_machines(GOAL, c) * times for times in TIMES):
        made = plan(GOAL, rates, machines)
        rows = sum(v for k, v in made.exchanged.items() if k != "Gramians")
        cells = [
            *(f"{1e3 * value:,.1f}" for value in made.step.values()),
            *(f"{made.hours:,.1f}", f"{rows / 1e6:.1f}", f"{made.exchanged['Gramians'] / 1e6:.2f}"),
            f"{gathered_batch(GOAL, made.processes) / 1e6:,.0f}",
        ]
        lines.append(f"| {machines} | {made.processes:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _checks(measured: list[Checked]) -> str:
    lines = [
        "| run | ms a step, measured | predicted | predicted / measured | MB, measured | predicted "
        "| predicted / measured |",
        "|" + "---|" * 7,
    ]
    for one in measured:
        predicted = median(seconds(one.size, rates) for rates in one.rates)
        cells = [
            *(f"{1e3 * median(one.steps):.2f}", f"{1e3 * predicted:.2f}"),
            *(f"{median(one.ratios):.2f}", f"{one.resident / 1e6:,.0f}"),
            *(f"{sum(memory(one.size).values()) / 1e6:,.0f}", f"{one.bytes_ratio:.2f}"),
        ]
        lines.append(f"| {one.size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def corpus_of(entities: int, pairs: int) -> Corpus:
    """Return a corpus of pairs drawn uniformly, its queries and candidates each at least once."""
    draw = torch.Generator().manual_seed(0)
    columns = {}
    for side in SIDES:
        ids = torch.randint(entities // 2, (pairs,), generator=draw)
        ids[: entities // 2] = torch.arange(entities // 2)
        columns[side] = ids.numpy()
    return Corpus.from_tables(pa.table(columns))


class LoopStep:
    """One step of the loop a call, through as many epochs as are needed."""

    def __init__(self, dim: int, batch: int, corpus: Corpus) -> None:
        values = {
            "data": {"kind": "synthetic"},
            "model": {"dim": dim},
            "task": {"l2": 0.0},
            "training": {"batch_size": batch},
        }
        settings = FitSettings.of(Recipe.of(values, SETTINGS), corpus, 0)
        self.step, self.sampler, self.draws = prepare(settings, corpus, CPU)
        self.running = self._steps()

    def __call__(self) -> None:
        next(self.running)

    def _steps(self) -> Iterator[Any]:
        epoch = 0
        while True:
            yield from run_epoch(self.step, self.sampler, self.draws, epoch, CPU)
            epoch += 1


def _checked(size: Size) -> Checked:
    torch.set_num_threads(1)  # a new process's are all of the machine's
    with no_denormals():
        return _check(size)


def _check(size: Size) -> Checked:
    few = LoopStep(size.dim, FEW, corpus_of(100, 4000))
    for _ in range(3):
        few()
    before = _resident()
    loop = LoopStep(size.dim, size.batch, corpus_of(size.entities, size.pairs))
    # Whole blocks, so that each has its share of the gathers that serve several steps.
    block = max(12, GATHERED // size.batch)
    for _ in range(3):
        loop()
    resident = _resident() - before
    probes = _Probes(size, loop)
    rates, steps = [], []
    for _ in range(BLOCKS):
        first = _timed(loop, block // 2)
        rates.append(probes.rates(median(_timed(few, 40, probes.evict))))
        steps.append((sum(first) + sum(_timed(loop, block - block // 2))) / block)
    return Checked(size, rates, steps, resident)


class _Probes:
    """The work of a step, one kind at a time, on the tables and pairs of a run."""

    def __init__(self, size: Size, loop: LoopStep) -> None:
        self.size = size
        self.draw = torch.Generator().manual_seed(1)
        self.table: Tensor = next(loop.step.encoder.parameters())
        self.sums = torch.zeros(len(self.table))
        self.sampler = loop.sampler
        self.inputs = cycle([torch.randn(size.batch, size.dim) for _ in range(ALIVE)])
        self.results: deque[Tensor] = deque(maxlen=ALIVE)
        self.matrix = torch.randn(size.dim, size.dim)
        self.others = torch.zeros(EVICTING // FLOAT)

    def evict(self) -> None:
        """Leave nothing of the last work in the core's own caches, as a step's other work does."""
        self.others.add_(1)

    def rates(self, fixed: float, rounds: int = 9) -> StepRates:
        """Return medians, of rows and pairs that no round has read before."""
        size = self.size
        per_row, per_pair = self._ids(len(self.table)), self._ids(len(self.sampler.query))
        pairs = max(size.batch, GATHERED)

        def time_of(work: Callable[[], object], ready: Callable[[], object] | None = None) -> float:
            taken = []
            for _ in range(rounds):
                (self.evict if ready is None else ready)()
                taken.append(_timed(work, 1)[0])
            return median(taken)

        with torch.no_grad():
            gather = time_of(lambda: torch.embedding(self.table, per_row.next(size.batch)))
            ids = torch.unique(per_row.next(size.batch))
            moving = [ids, next(self.inputs)[: len(ids)]]

            def ready() -> None:
                moving[0] = torch.unique(per_row.next(size.batch))
                moving[1] = next(self.inputs)[: len(moving[0])]
                self.evict()

            scatter = time_of(lambda: self.table.index_add_(0, *moving, alpha=0.0), ready)
            state = time_of(partial(self._state, moving), ready)
            coalesce = time_of(lambda: self._sparse(per_row.next(size.batch)).coalesce())
            pair = time_of(lambda: self._pairs(per_pair.next(pairs)))
            # As in a step, of blocks that were not the last ones, into new memory.
            for _ in range(ALIVE):
                self.results.append(next(self.inputs).clone())
            copied = time_of(lambda: self.results.append(next(self.inputs).clone()), int)
            product = time_of(lambda: self.results.append(next(self.inputs) @ self.matrix), int)
        return StepRates(
            fixed,
            gather=gather / size.batch,
            scatter=scatter / size.batch,
            coalesce=coalesce / size.batch,
            state=state / size.batch,
            pair=pair / pairs,
            copied=copied / (size.batch * size.dim * FLOAT),
            flop=product / (2 * size.batch * size.dim**2),
        )

    def _ids(self, count: int) -> _Fresh:
        return _Fresh(count, self.draw)

    def _sparse(self, ids: Tensor) -> Tensor:
        return torch.sparse_coo_tensor(
            ids[None], next(self.inputs), self.table.shape, check_invariants=False
        )

    def _state(self, moving: list[Tensor]) -> None:
        self.sums.index_copy_(0, moving[0], self.sums.index_select(0, moving[0]))

    def _pairs(self, places: Tensor) -> None:
        query = self.sampler.query.index_select(0, places)
        candidate = self.sampler.candidate.index_select(0, places)
        self.sampler.query_weights.index_select(0, query)
        self.sampler.candidate_weights.index_select(0, candidate)


class _Fresh:
    """Ids that differ from call to call, drawn before they are timed."""

    def __init__(self, count: int, draw: torch.Generator) -> None:
        self.ids = torch.randint(count, (32, GATHERED), generator=draw)
        self.place = 0

    def next(self, size: int) -> Tensor:
        self.place = (self.place + 1) % len(self.ids)
        return self.ids[self.place, :size]


def _timed(
    work: Callable[[], object], count: int, ready: Callable[[], object] = int
) -> list[float]:
    """Return the processor's seconds of each of so many calls: others' turns do not count.

    Args:
        ready: called before each, and not timed.
    """
    taken = []
    for _ in range(count):
        ready()
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return taken


def _resident() -> int:
    """Return the bytes of this process in memory, those of mapped files left out (Linux).

    What the allocator keeps for later is given back first.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * 4096
