"""How clusters begin, merge and split, on their sums alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# Columns of a cluster's sums, [K, D + 2]: Σ ν, then Σ ν v, and last Σ ν‖v‖².
SIZE, SQUARE = 0, -1
# Of all clusters, how many change at most at once; and of a batch's rows, how many begin one.
CHANGED, BEGUN = 16, 4
# A merge must raise the scatter by at most so much of what the split lowers it by.
WORTH = 0.5
# (mean of a half of a normal distribution / its standard deviation)².
HALF = 2 / math.pi
# A row so near to a centre, by the square of the distance over the rows' mean square, begins none.
NEAR = 1e-9


def centres(sums: Tensor) -> Tensor:
    """Return the mean of each cluster, [K, D]; zero of an empty one."""
    size = sums[:, SIZE, None]
    return torch.where(size > 0, sums[:, SIZE + 1 : SQUARE] / size.where(size > 0, 1.0), 0.0)


def scatter(sums: Tensor) -> Tensor:
    """Return Σ ν‖v − c‖² of each cluster, [K]."""
    return (sums[:, SQUARE] - sums[:, SIZE] * centres(sums).square().sum(1)).clamp(min=0)


def seeds(
    centre: Tensor, taken: Tensor, rows: Tensor, weights: Tensor, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return centres [K, D] and which of them count [K], with rows in the place of empty ones.

    Each row is drawn in proportion to its weight times the square of its distance to the nearest
    centre that there is, as k-means++ does. At most a quarter of a batch becomes centres.

    Args:
        centre: [K, D].
        taken: bool [K], which centres are not empty.
        rows: [B, D].
        weights: [B].
        draw: the generator, on the host.
    Source: Arthur and Vassilvitskii 2007.
    """
    centre, taken = centre.clone(), taken.clone()
    places = (~taken).nonzero().flatten().tolist()
    distance = torch.full_like(weights, 1.0)
    if bool(taken.any()):
        distance = torch.cdist(rows, centre[taken]).square().amin(1)
    # The least that counts as away; before the first centre every row does.
    near = NEAR * float(rows.square().sum(1).mean())
    for place in places[: max(1, len(rows) // BEGUN)]:
        mass = torch.where(distance > near, weights * distance, 0.0).double().cumsum(0)
        if not float(mass[-1]) > 0:
            break
        chance = torch.rand((), generator=draw, dtype=torch.float64).to(mass)
        chosen = torch.searchsorted(mass, chance * mass[-1], right=True).clamp(max=len(rows) - 1)
        away = (rows - rows[chosen]).square().sum(1)
        distance = torch.minimum(distance, away) if bool(taken.any()) else away
        centre[place], taken[place] = rows[chosen], True
    return centre, taken


@dataclass(frozen=True)
class Change:
    """Which clusters merge into which, and which split in their place.

    Args:
        merged, target, wide: int64 [M], the clusters that merge, what they merge into, and those
            that split; no cluster is in two of the lists' first and last.
        offset: [M, D], from the centre of a split cluster to that of its half.
        worth: bool [M], whether it is done.
    """

    merged: Tensor
    target: Tensor
    wide: Tensor
    offset: Tensor
    worth: Tensor

    def sums(self, sums: Tensor) -> Tensor:
        """Return the clusters' sums after it, [K, D + 2]; totals stay as they are."""
        parent = sums[self.wide]
        half = parent[:, SIZE] / 2
        centre = centres(parent)
        lowered = half * self.offset.square().sum(1)
        spread = scatter(parent) / 2 - lowered
        halves = []
        for sign in (-1, 1):
            moved = centre + sign * self.offset
            square = spread + half * moved.square().sum(1)
            halves.append(torch.cat([half[:, None], half[:, None] * moved, square[:, None]], dim=1))
        return self._applied(sums, halves[0], halves[1])

    def push(self, push: Tensor) -> Tensor:
        """Return the clusters' push after it, [K, D]: sums of those merged, halves of those
        split."""
        half = push[self.wide] / 2
        return self._applied(push, half, half)

    def _applied(self, rows: Tensor, parent: Tensor, child: Tensor) -> Tensor:
        worth = self.worth[:, None]
        into = functional.one_hot(self.target, len(rows)).to(rows)
        after = rows + into.T @ torch.where(worth, rows[self.merged], 0.0)
        after[self.merged] = torch.where(worth, child, after[self.merged])
        after[self.wide] = torch.where(worth, parent, after[self.wide])
        return after


def rebalanced(sums: Tensor, within: Tensor) -> Change | None:
    """Return the merges of the emptiest clusters and the splits of the widest that lower the
    scatter.

    A merge of sizes m, n whose centres are d apart raises it by mn/(m + n) d² (Ward 1963). A split
    is along the first principal direction e of the pooled covariance W, as if each cluster had
    its shape and were normal: the halves' centres are √(2/π) σ from the parent's, with
    σ² = (scatter/size) eᵀWe/tr W, and the scatter falls by size · (2/π) σ².

    Args:
        sums: [K, D + 2].
        within: [D, D], the pooled covariance W.
    Returns: None with fewer than three clusters, or without any scatter.
    """
    clusters = len(sums)
    trace = torch.trace(within)
    if clusters < 3 or not float(trace) > 0:
        return None
    most = max(1, clusters // CHANGED)
    size, width = sums[:, SIZE], scatter(sums)
    merged = size.argsort(stable=True)[:most]
    left = width.clone()
    left[merged] = -1.0
    wide = left.argsort(descending=True, stable=True)[:most]
    values, vectors = torch.linalg.eigh((within + within.T) / 2)
    lowered = HALF * (values[-1] / trace).clamp(0, 1) * width[wide]
    first = vectors[:, -1]
    # The sign of an eigenvector is the library's choice: its largest entry is made positive.
    first = first * first[first.abs().argmax()].sign()
    length = (lowered / size[wide].where(size[wide] > 0, torch.inf)).sqrt()
    centre = centres(sums)
    ours, theirs = size[merged, None], size[None, :]
    apart = torch.cdist(centre[merged], centre).square()
    raised = ours * theirs / (ours + theirs).clamp(min=torch.finfo(size.dtype).tiny) * apart
    raised[:, merged] = torch.inf
    raised[:, wide] = torch.inf
    raised[:, size <= 0] = torch.inf
    cost, target = raised.min(1)
    return Change(merged, target, wide, length[:, None] * first, cost < WORTH * lowered)
