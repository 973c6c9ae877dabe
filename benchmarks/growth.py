"""Does the estimator's part of a step grow with the catalogue? From 10⁴ to 10⁷ entities."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from evergram.gramian.estimator import EntityBatch, GramianEstimator
from evergram.gramian.penalty import BatchSide, quadratic_penalty
from evergram.gramian.sagram import SAGram
from evergram.gramian.sampled import SampledGramian
from evergram.gramian.sogram import SOGram
from evergram.gramian.storm import Storm

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
BATCH, DIM = 1024, 32
ESTIMATORS: dict[str, Callable[[Tensor], GramianEstimator]] = {
    "sampled": lambda share: SampledGramian(DIM),
    "SOGram": lambda share: SOGram(DIM),
    "storm": lambda share: Storm(DIM),
    "SAGram 1/n": lambda share: SAGram(DIM, share),
}
STEPS = 8  # in a row, of one estimator in one round


@dataclass(frozen=True)
class Growth:
    """By estimator, one entry for each size of the catalogue.

    Args:
        milliseconds: median of the estimator's part of a step, both sides.
        ratios: median over rounds of its time over its own at the smallest size.
        state_bytes: of one side.
    """

    sizes: tuple[int, ...]
    milliseconds: dict[str, list[float]]
    ratios: dict[str, list[float]]
    state_bytes: dict[str, list[int]]


def growth(sizes: tuple[int, ...] = SIZES, rounds: int = 15) -> Growth:
    """Measure `begin`, `update`, `after_step`, `moment` and the penalty with its gradient.

    Entities are drawn uniformly, the same number on both sides. Embeddings are random numbers, made
    outside of the measured time, because no encoder is measured.
    """
    result = Growth(sizes, {}, {}, {})
    for name, make in ESTIMATORS.items():
        parts = [_Part(make, size) for size in sizes]
        times: list[list[float]] = [[] for _ in sizes]
        for number in range(rounds + 2):
            for kept, part in zip(times, parts, strict=True):
                taken = part.take()
                if number > 1:  # the first rounds warm up
                    kept.append(taken)
        result.milliseconds[name] = [1000 * median(kept) for kept in times]
        result.ratios[name] = [
            median(t / b for t, b in zip(kept, times[0], strict=True)) for kept in times
        ]
        result.state_bytes[name] = [part.sides[0].state_bytes for part in parts]
    return result


def tiny() -> Growth:
    return growth((100, 200), rounds=1)


def table(measured: Growth) -> str:
    lines = [
        "| entities a side | " + " | ".join(f"{size:,}" for size in measured.sizes) + " |",
        "|---" * (len(measured.sizes) + 1) + "|",
    ]
    for name, ratios in measured.ratios.items():
        cells = zip(measured.milliseconds[name], ratios, measured.state_bytes[name], strict=True)
        text = " | ".join(f"{ms:.2f} ms, ×{r:.2f}, {_bytes(b)}" for ms, r, b in cells)
        lines.append(f"| {name} | {text} |")
    return "\n".join(lines)


class _Part:
    """The estimator's part of steps, with two sides of a catalogue of one size."""

    def __init__(self, make: Callable[[Tensor], GramianEstimator], size: int) -> None:
        self.draw = torch.Generator().manual_seed(0)
        self.size = size
        share = torch.full((size,), 1 / size, dtype=torch.float64)
        self.sides = [make(share) for _ in range(2)]
        self.weights = torch.ones(BATCH)
        for side in self.sides:
            side.begin(self._population)

    def take(self) -> float:
        """Take `STEPS` steps and return the seconds of one."""
        batches = [
            [self._rows(0.1 * torch.randn(BATCH, DIM, generator=self.draw)) for _ in self.sides]
            for _ in range(STEPS)
        ]
        started = time.perf_counter()
        for batch in batches:
            for side in self.sides:
                side.begin(self._population)
            query, candidate = (rows.embeddings.clone().requires_grad_() for rows in batch)
            first, second = (side.moment() for side in self.sides)
            penalty = quadratic_penalty(
                BatchSide(query, self.weights, first), BatchSide(candidate, self.weights, second)
            )
            penalty.backward()  # type: ignore[no-untyped-call]
            for side, rows in zip(self.sides, batch, strict=True):
                side.update(rows)
                side.after_step(rows)
        return (time.perf_counter() - started) / STEPS

    def _rows(self, before: Tensor | None) -> EntityBatch:
        ids = torch.randint(self.size, (BATCH,), generator=self.draw)
        embeddings = 0.1 * torch.randn(BATCH, DIM, generator=self.draw)
        return EntityBatch(ids, self.weights, embeddings, embeddings[:, :0], before)

    def _population(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for start in range(0, self.size, 65_536):
            rows = 0.1 * torch.randn(min(65_536, self.size - start), DIM, generator=self.draw)
            yield rows, torch.full((len(rows),), 1 / self.size), rows[:, :0]


def _bytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB" if count >= 1_000_000 else f"{count / 1000:,.0f} kB"
