"""Bias and variance of the softmax's gradient over clusters, against the exact softmax's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.sampling import Batch
from evergram.tasks.clustered_softmax import PUSHES, ClusteredSoftmax
from evergram.tasks.task import Encoded

CLUSTERS, DIMS = (1, 8, 32, 128, 512), (16, 64)
QUERIES, CANDIDATES, TOPICS, BATCH = 4096, 16_384, 100, 1024
TEMPERATURE, RATE = 0.1, 0.05
# Batches before the first look, between two, and the looks.
BEFORE, APART, LOOKS = 200, 20, 16


@dataclass(frozen=True)
class Cell:
    """‖bias‖/‖∇‖ and √variance/‖∇‖ of one side's gradient, with one way to push candidates.

    Args:
        side: "queries", or "candidates, " and the push.
    """

    clusters: int
    dim: int
    side: str
    bias: float
    deviation: float


@dataclass(frozen=True)
class ClusterBias:
    """All cells."""

    cells: list[Cell]


class Catalogue:
    """Unit rows of both sides around topics, whose sizes and whose candidates' draws are Zipf's."""

    def __init__(self, queries: int, candidates: int, dim: int, seed: int = 0) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        topics = torch.randn(TOPICS, dim, generator=self.draw)
        spectrum = torch.arange(1, dim + 1) ** -0.25
        sizes = 1 / torch.arange(1.0, TOPICS + 1)
        rows = []
        for count in (queries, candidates):
            of = torch.multinomial(sizes, count, replacement=True, generator=self.draw)
            noise = torch.randn(count, dim, generator=self.draw)
            rows.append(functional.normalize((topics[of] + noise) * spectrum))
        self.query, self.candidate = rows
        self.rate = 1 / torch.arange(1.0, candidates + 1)
        self.rate = self.rate / self.rate.sum()

    def batch(self, size: int) -> tuple[Encoded, Batch]:
        """Return so many pairs; a pair's two rows are drawn apart."""
        rows = torch.randint(len(self.query), (size,), generator=self.draw)
        columns = torch.multinomial(self.rate, size, replacement=True, generator=self.draw)
        weight = (1 / (len(self.candidate) * self.rate[columns]))[:, None]
        ones = torch.ones(size, 1)
        pairs = Batch(rows, columns, ones[:, 0], ones, weight)
        return Encoded(self.query[rows], self.candidate[columns]), pairs

    def exact(self, queries: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of log Σ_b e^s, [B, D] each: of these queries, one each, and of
        these candidates, from the mean over all queries times N."""
        shares = (queries @ self.candidate.T / TEMPERATURE).softmax(1)
        partition = torch.cat(
            [
                (q @ self.candidate.T / TEMPERATURE).logsumexp(1)
                for q in torch.split(self.query, 512)
            ]
        )
        scores = self.query @ candidates.T / TEMPERATURE
        pushed = (scores - partition[:, None]).exp().T @ self.query / len(self.query)
        return (
            shares @ self.candidate / TEMPERATURE,
            pushed * len(self.candidate) / TEMPERATURE,
        )


def measure() -> ClusterBias:
    cells = []
    for dim in DIMS:
        catalogue = Catalogue(QUERIES, CANDIDATES, dim)
        for clusters in CLUSTERS:
            cells += measured(catalogue, clusters, BATCH, (BEFORE, APART, LOOKS))
    return ClusterBias(cells)


def tiny() -> ClusterBias:
    catalogue = Catalogue(64, 128, 4)
    return ClusterBias([c for k in (1, 8) for c in measured(catalogue, k, 32, (5, 2, 3))])


def measured(
    catalogue: Catalogue, clusters: int, size: int, when: tuple[int, int, int]
) -> list[Cell]:
    """Return the cells of one number of clusters: all looks are at the same rows.

    Args:
        size: B.
        when: batches before the first look, between two, and the looks.
    """
    before, apart, looks = when
    ones = torch.ones(size, 1)
    ids = torch.randint(
        len(catalogue.candidate), (size,), generator=torch.Generator().manual_seed(1)
    )
    rows = ids % len(catalogue.query)
    probes = Batch(rows, ids, ones[:, 0], ones, ones)
    query, candidate = catalogue.query[rows], catalogue.candidate[ids]
    exact = catalogue.exact(query, candidate)
    task = ClusteredSoftmax(len(catalogue.candidate), TEMPERATURE, clusters, RATE)
    seen: dict[str, list[Tensor]] = {}
    for look in range(looks):
        task.train()
        task.push = "streamed"
        for _ in range(apart if look else before):
            task(*catalogue.batch(size), {})
        task.eval()
        others = catalogue.batch(size)[0].query
        for side, push in [("queries", "streamed"), *((f"candidates, {p}", p) for p in PUSHES)]:
            task.push = push
            left = (query if side == "queries" else others).clone().requires_grad_()
            right = candidate.clone().requires_grad_()
            loss = task(Encoded(left, right), probes, {})
            # Without the pull of a pair's own.
            loss = loss + (left * right).sum(1).mean() / TEMPERATURE
            (slope,) = torch.autograd.grad(loss, left if side == "queries" else right)
            seen.setdefault(side, []).append(slope * size)
    dim = query.shape[1]
    return [
        Cell(clusters, dim, side, *_parts(slopes, exact[side != "queries"]))
        for side, slopes in seen.items()
    ]


def _parts(slopes: Sequence[Tensor], exact: Tensor) -> tuple[float, float]:
    """Return ‖bias‖/‖∇‖, the looks' own noise taken off, and √variance/‖∇‖."""
    stacked = torch.stack(list(slopes))
    mean = stacked.mean(0)
    whole = float(exact.square().sum())
    variance = float((stacked - mean).square().sum()) / (len(stacked) - 1)
    bias = float((mean - exact).square().sum()) - variance / len(stacked)
    return (max(0.0, bias) / whole) ** 0.5, (variance / whole) ** 0.5


def table(result: ClusterBias) -> str:
    """Return a table of bias / deviation, a row for each number of clusters and dim."""
    sides = list(dict.fromkeys(cell.side for cell in result.cells))
    lines = ["| D | K | " + " | ".join(sides) + " |", "|---" * (len(sides) + 2) + "|"]
    by_place = {(c.dim, c.clusters, c.side): c for c in result.cells}
    for dim, clusters in dict.fromkeys((c.dim, c.clusters) for c in result.cells):
        cells = (by_place[dim, clusters, side] for side in sides)
        text = " | ".join(f"{cell.bias:.3f} / {cell.deviation:.3f}" for cell in cells)
        lines.append(f"| {dim} | {clusters} | {text} |")
    return "\n".join(lines)
