"""Does a step of the softmax over clusters grow with the catalogue? Beside the second order's, and
beside the softmax that scores every candidate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.sampling import Batch
from evergram.gramian.estimator import EntityBatch
from evergram.gramian.sogram import SOGram
from evergram.tasks.clustered_softmax import ClusteredSoftmax
from evergram.tasks.second_order import SecondOrderSoftmax
from evergram.tasks.softmax_all import SoftmaxAll
from evergram.tasks.task import Encoded

SIZES = (10_000, 100_000, 1_000_000)
CLUSTERS = (32, 128, 512)
BATCH, DIM, TEMPERATURE = 1024, 64, 0.1
STEPS = 4  # in a row, of one loss in one round; of the exact softmax one
Step = Callable[[Encoded, Batch], None]


@dataclass(frozen=True)
class ClusterGrowth:
    """By loss, one entry for each size of the catalogue.

    Args:
        milliseconds: median of the loss's part of a step.
        ratios: median over rounds of its time over the second-order softmax's of the same round.
        state_bytes: of all moments.
    """

    sizes: tuple[int, ...]
    milliseconds: dict[str, list[float]]
    ratios: dict[str, list[float]]
    state_bytes: dict[str, list[int]]


class SecondOrder:
    """The second-order softmax with the two Gramians that it reads."""

    def __init__(self) -> None:
        self.task = SecondOrderSoftmax(TEMPERATURE)
        self.sides = {side: SOGram(DIM, 1) for side in ("query", "candidate")}

    def __call__(self, encoded: Encoded, batch: Batch) -> None:
        moments = {side: [estimator.moment()] for side, estimator in self.sides.items()}
        self.task(encoded, batch, moments).backward()
        ones = torch.ones(BATCH, 1)
        rows = {"query": encoded.query, "candidate": encoded.candidate}
        weights = {"query": batch.query_weight, "candidate": batch.candidate_weight}
        for side, estimator in self.sides.items():
            ids = getattr(batch, side)
            estimator.update(EntityBatch(ids, weights[side][:, 0], rows[side].detach(), ones))

    @property
    def state_bytes(self) -> int:
        """Bytes of both Gramians."""
        return sum(estimator.state_bytes for estimator in self.sides.values())


class Clustered:
    """The softmax over clusters."""

    def __init__(self, size: int, clusters: int, push: str) -> None:
        self.task = ClusteredSoftmax(size, TEMPERATURE, clusters, push=push)

    def __call__(self, encoded: Encoded, batch: Batch) -> None:
        self.task(encoded, batch, {}).backward()

    @property
    def state_bytes(self) -> int:
        """Bytes of all that is kept between steps."""
        return sum(b.numel() * b.element_size() for b in self.task.buffers())


class Exact:
    """The softmax over all candidates, whose vectors it reads and gives a gradient to."""

    state_bytes = 0

    def __init__(self, candidates: Tensor) -> None:
        self.task = SoftmaxAll(TEMPERATURE)
        self.candidates = candidates.clone().requires_grad_()

    def __call__(self, encoded: Encoded, batch: Batch) -> None:
        self.candidates.grad = None
        self.task(replace(encoded, all_candidates=self.candidates), batch, {}).backward()


def measure() -> ClusterGrowth:
    return growth(SIZES, rounds=15)


def tiny() -> ClusterGrowth:
    return growth((2000, 4000), rounds=1)


def growth(sizes: tuple[int, ...], rounds: int) -> ClusterGrowth:
    """Measure the loss, its gradient for the rows that it reads, and what its moments learn.

    Rows are looked up in tables of each size, outside of the measured time. The losses take turns.
    """
    draw = torch.Generator().manual_seed(0)
    tables = [functional.normalize(torch.randn(n, DIM, generator=draw)) for n in sizes]
    losses: dict[str, list[SecondOrder | Clustered | Exact]] = {
        "second order": [SecondOrder() for _ in sizes]
    }
    for clusters in CLUSTERS:
        for push in ("streamed", "scores"):
            losses[f"{clusters} clusters, {push}"] = [Clustered(n, clusters, push) for n in sizes]
    losses["all candidates"] = [Exact(table) for table in tables]
    times: dict[str, list[list[float]]] = {name: [[] for _ in sizes] for name in losses}
    for number in range(rounds + 2):
        for place, table in enumerate(tables):
            batches = [_batch(table, draw) for _ in range(STEPS)]
            for name, each in losses.items():
                loss = each[place]
                taken = _timed(loss, batches[:1] if isinstance(loss, Exact) else batches)
                if number > 1:  # the first rounds warm up
                    times[name][place].append(taken)
    base = times["second order"]
    return ClusterGrowth(
        sizes,
        {name: [1000 * median(kept) for kept in own] for name, own in times.items()},
        {
            name: [
                median(t / b for t, b in zip(kept, first, strict=True))
                for kept, first in zip(own, base, strict=True)
            ]
            for name, own in times.items()
        },
        {name: [loss.state_bytes for loss in each] for name, each in losses.items()},
    )


def _timed(step: Step, batches: list[tuple[Tensor, Tensor, Batch]]) -> float:
    """Return the seconds of one step."""
    encoded = [
        (Encoded(query.clone().requires_grad_(), candidate.clone().requires_grad_()), batch)
        for query, candidate, batch in batches
    ]
    started = time.perf_counter()
    for rows, batch in encoded:
        step(rows, batch)
    return (time.perf_counter() - started) / len(batches)


def _batch(table: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor, Batch]:
    rows, columns = (torch.randint(len(table), (BATCH,), generator=draw) for _ in range(2))
    ones = torch.ones(BATCH, 1)
    return table[rows], table[columns], Batch(rows, columns, ones[:, 0], ones, ones)


def table(measured: ClusterGrowth) -> str:
    """Return a table of milliseconds, the ratio to the second order's step, and state."""
    lines = [
        "| candidates | " + " | ".join(f"{size:,}" for size in measured.sizes) + " |",
        "|---" * (len(measured.sizes) + 1) + "|",
    ]
    for name, ratios in measured.ratios.items():
        cells = zip(measured.milliseconds[name], ratios, measured.state_bytes[name], strict=True)
        text = " | ".join(f"{ms:.1f} ms, ×{r:.1f}, {b / 1000:,.0f} kB" for ms, r, b in cells)
        lines.append(f"| {name} | {text} |")
    return "\n".join(lines)
