"""When is a batch's penalty cheaper with a Gramian than with pairs, and does "auto" choose well?"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch

from evergram.gramian.estimator import EntityBatch
from evergram.gramian.penalty import BatchSide, quadratic_penalty
from evergram.gramian.sampled import SampledGramian

DIMS = (32, 64, 128)
BATCHES = (16, 32, 64, 128, 256, 512, 1024)
FORMS = ("gramian", "pairs")
STEPS = 10  # in a row, of one form in one round


@dataclass(frozen=True)
class Crossover:
    """Which form is faster.

    Args:
        ratios: by dim and batch size, the median over rounds of the pair form's time over the
            Gramian form's.
        auto: the form that "auto" chooses there.
    """

    ratios: dict[int, dict[int, float]]
    auto: dict[int, dict[int, str]]


def crossover(
    rounds: int = 25, dims: tuple[int, ...] = DIMS, batches: tuple[int, ...] = BATCHES
) -> Crossover:
    """Measure `update`, `moment` and the penalty with its gradient, both sides with one batch
    size, the two forms in turns in each round."""
    result = Crossover({d: {} for d in dims}, {d: {} for d in dims})
    for dim in dims:
        for size in batches:
            forms = {form: _Steps(form, dim, size) for form in FORMS}
            ratios = []
            for number in range(rounds + 2):
                order = FORMS if number % 2 else FORMS[::-1]
                taken = {form: forms[form].take() for form in order}
                if number > 1:  # the first rounds warm up
                    ratios.append(taken["pairs"] / taken["gramian"])
            result.ratios[dim][size] = median(ratios)
            auto = _Steps("auto", dim, size)
            auto.take()
            dense = auto.sides[0].moment().matrix is not None
            result.auto[dim][size] = "gramian" if dense else "pairs"
    return result


def tiny() -> Crossover:
    return crossover(1, (8, 16), (16, 32))


def table(measured: Crossover) -> str:
    dims = list(measured.ratios)
    lines = [
        "| batch | " + " | ".join(f"D = {dim}" for dim in dims) + " |",
        "|---" * (len(dims) + 1) + "|",
    ]
    for size in measured.ratios[dims[0]]:
        cells = " | ".join(
            f"{measured.ratios[d][size]:.2f}, {measured.auto[d][size]}" for d in dims
        )
        lines.append(f"| {size} | {cells} |")
    return "\n".join(lines)


class _Steps:
    """The estimator's part of training steps, in one form."""

    def __init__(self, form: str, dim: int, size: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.sides = [SampledGramian(dim, form=form) for _ in range(2)]
        self.weights = torch.ones(size)
        self.rows = []
        for _ in self.sides:
            embeddings = 0.1 * torch.randn(size, dim, generator=draw)
            self.rows.append(
                EntityBatch(torch.arange(size), self.weights, embeddings, embeddings[:, :0])
            )

    def take(self) -> float:
        """Take `STEPS` steps and return the seconds of one."""
        started = time.perf_counter()
        for _ in range(STEPS):
            for side, rows in zip(self.sides, self.rows, strict=True):
                side.update(rows)
            query, candidate = (rows.embeddings.clone().requires_grad_() for rows in self.rows)
            first, second = (side.moment() for side in self.sides)
            penalty = quadratic_penalty(
                BatchSide(query, self.weights, first), BatchSide(candidate, self.weights, second)
            )
            penalty.backward()  # type: ignore[no-untyped-call]
        return (time.perf_counter() - started) / STEPS
