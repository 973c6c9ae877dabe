"""Moments of clusters of candidates, averaged over batches; how clusters begin, merge and split."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from evergram.gramian.estimator import HostBuffers

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


# Batches between two looks at which clusters to merge and to split.
EVERY = 16


@dataclass(frozen=True)
class Clusters:
    """The clusters as a loss reads them; all detached.

    Args:
        centre: [K, D]; zero of an empty cluster.
        log_share: [K], log of the weight q of the candidates of each; −inf of an empty cluster.
        within: [D, D], Σ_b q_b (v_b − c)(v_b − c)ᵀ, c the centre of v_b's cluster.
        push: [K, D], mean over queries of p_k u.
        gramian: [D, D], mean over queries of u ⊗ u.
    """

    centre: Tensor
    log_share: Tensor
    within: Tensor
    push: Tensor
    gramian: Tensor

    def assign(self, rows: Tensor) -> Tensor:
        """Return the nearest cluster of each row [B, D] that is not empty, int64 [B]."""
        return nearest(rows, self.centre, self.log_share > -torch.inf)

    def to(self, like: Tensor) -> Clusters:
        """Return the same in the dtype and on the device of another tensor."""
        parts = (self.centre, self.log_share, self.within, self.push, self.gramian)
        return Clusters(*(part.to(like) for part in parts))


class ClusterMoments(HostBuffers):
    """K clusters of candidates and what queries push them by, as averages over batches.

    A candidate belongs to the centre that is nearest when it is seen; nothing is kept of any one
    candidate. Of each cluster it keeps Σ ν, Σ ν v and Σ ν‖v‖², and of all together Σ ν v ⊗ v, from
    which the pooled covariance follows: positive semi-definite whatever the rate, as all four
    average the same batches with the same weights. What a candidate was counted for in a cluster
    that it has left is forgotten as the averages forget, (1 − α)^t. State is O(K D + D²).

    Centres begin as rows of the first batches, drawn as k-means++ draws them. Every `EVERY`
    batches the emptiest clusters are merged into near ones, and those with the largest scatter
    split in their place, where that lowers the scatter within clusters. Draws are a function of the
    seed and of the number of batches.

    Args:
        clusters, dim: K and D.
        rate: α in (0, 1]; the same for candidates and queries.
        seed: of the draws of first centres.
        dtype: of the sums.
    Source: docs/method.md, "Softmax over clusters".
    """

    on_host: tuple[str, ...] = ("batches", "empty", "missing")

    def __init__(
        self,
        clusters: int,
        dim: int,
        rate: float = 0.05,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.rate = rate
        self.sums: Tensor
        self.total: Tensor
        self.push: Tensor
        self.gramian: Tensor
        self.missing: Tensor
        self.batches: Tensor
        self.empty: Tensor
        # Σ ν, Σ ν v and Σ ν‖v‖² of each cluster, side by side.
        self.register_buffer("sums", torch.zeros(clusters, dim + 2, dtype=dtype))
        self.register_buffer("total", torch.zeros(dim, dim, dtype=dtype))
        self.register_buffer("push", torch.zeros(clusters, dim, dtype=dtype))
        self.register_buffer("gramian", torch.zeros(dim, dim, dtype=dtype))
        # Π (1 − α_t) of the queries' averages, whose zero start is divided out.
        self.register_buffer("missing", torch.ones((), dtype=torch.float64))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.register_buffer("empty", torch.tensor(clusters))

    @property
    def dim(self) -> int:
        """D."""
        return len(self.total)

    def clusters(self) -> Clusters:
        """Return the clusters as they are now; empty ones before the first batch."""
        size = self.sums[:, SIZE]
        centre = centres(self.sums)
        whole = size.sum().clamp(min=torch.finfo(size.dtype).tiny)
        within = (self.total - (centre * size[:, None]).T @ centre) / whole
        weight = max(1 - float(self.missing), 1e-30)
        log_share = torch.where(size > 0, size / whole, 0.0).log()
        return Clusters(centre, log_share, within, self.push / weight, self.gramian / weight)

    @torch.no_grad()
    def learn_candidates(self, rows: Tensor, weights: Tensor) -> None:
        """Average a batch of candidates in.

        Args:
            rows: [B, D].
            weights: [B], ν with E[(1/B) Σ ν f(v)] = Σ_b q_b f(v_b); the sampler gives them.
        """
        rows, weights = rows.to(self.sums), weights.to(self.sums)
        centre, taken = centres(self.sums), self.sums[:, SIZE] > 0
        if int(self.empty):
            draw = torch.Generator().manual_seed(self.seed * 1_000_003 + int(self.batches))
            centre, taken = seeds(centre, taken, rows, weights, draw)
            self.empty = (~taken).sum().cpu()
        share = weights / len(rows)
        members = rows.new_zeros(len(rows), len(centre))
        members.scatter_(1, nearest(rows, centre, taken)[:, None], 1.0)
        square = rows.square().sum(1)
        # A product in place of a scattered sum, whose order is not the same twice on a GPU.
        wide = torch.cat([torch.ones_like(share)[:, None], rows, square[:, None]], dim=1)
        batch = members.T @ (wide * share[:, None])
        self.sums = torch.lerp(self.sums, batch, self.rate)
        self.total = torch.lerp(self.total, (rows * share[:, None]).T @ rows, self.rate)
        self.batches = self.batches + 1
        if int(self.batches) % EVERY == 0:
            self._rebalance()

    @torch.no_grad()
    def learn_queries(self, shares: Tensor, rows: Tensor) -> None:
        """Average a batch of queries in.

        Args:
            shares: [B, K], p_k of each query, which add up to 1.
            rows: [B, D].
        """
        shares, rows = shares.to(self.push), rows.to(self.push)
        batch = shares.T @ rows / len(rows)
        self.push = torch.lerp(self.push, batch, self.rate)
        self.gramian = torch.lerp(self.gramian, rows.T @ rows / len(rows), self.rate)
        self.missing = self.missing * (1 - self.rate)

    def _rebalance(self) -> None:
        """Merge the emptiest clusters and split the widest."""
        change: Change | None = rebalanced(self.sums, self.clusters().within)
        if change is not None:
            self.sums, self.push = change.sums(self.sums), change.push(self.push)


def nearest(rows: Tensor, centre: Tensor, taken: Tensor) -> Tensor:
    """Return the nearest centre of each row, int64 [B].

    Args:
        rows: [B, D].
        centre: [K, D].
        taken: bool [K], which centres count.
    """
    distance = centre.square().sum(1) - 2 * rows @ centre.T
    return distance.masked_fill(~taken, torch.inf).argmin(1)
