"""Moments of clusters of candidates, averaged as batches pass: sizes, centres, one covariance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.gramian.averaging_rate import AveragingRate
from evergram.gramian.clusters.cluster_changes import (
    SIZE,
    SQUARE,
    Change,
    centres,
    rebalanced,
    seeds,
)
from evergram.gramian.host_buffers import HostBuffers

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
        rate: α in (0, 1], or "auto"; the same for candidates and queries.
        seed: of the draws of first centres.
        dtype: of the sums.
    Source: docs/method.md, "Softmax over clusters".
    """

    on_host: tuple[str, ...] = ("batches", "empty", "missing")

    def __init__(
        self,
        clusters: int,
        dim: int,
        rate: float | str = 0.05,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.seed = seed
        shape = torch.Size((clusters, dim))
        self.candidate_rate: AveragingRate = AveragingRate(shape, rate)
        self.query_rate: AveragingRate = AveragingRate(shape, rate)
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
        rate = self.candidate_rate()
        self.sums = torch.lerp(self.sums, batch, rate)
        self.total = torch.lerp(self.total, (rows * share[:, None]).T @ rows, rate)
        norms = weights.double().square() * square.double()
        _observe(self.candidate_rate, batch[:, SIZE + 1 : SQUARE], norms)
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
        rate = self.query_rate()
        self.push = torch.lerp(self.push, batch, rate)
        self.gramian = torch.lerp(self.gramian, rows.T @ rows / len(rows), rate)
        self.missing = self.missing * (1 - rate)
        norms = shares.square().sum(1).double() * rows.square().sum(1).double()
        _observe(self.query_rate, batch, norms)

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


def _observe(rate: AveragingRate, batch: Tensor, norms: Tensor) -> None:
    """Let a rate learn from a batch's mean of B matrices, whose squared norms are `norms` [B]."""
    if not rate.auto:
        rate.skip()
        return
    noise: Tensor | None = None
    if rate.wants_noise:
        spread = norms.mean() - batch.double().square().sum()
        noise = (spread / max(1, len(norms) - 1)).clamp(min=0)
    rate.observe(batch, noise)
