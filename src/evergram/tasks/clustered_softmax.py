"""Softmax over all candidates, its partition function summed over clusters of them."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.gramian.cluster_moments import ClusterMoments, Clusters
from evergram.tasks.task import Encoded, Moments, Task, score


class ClusteredSoftmax(Task):
    """Cross entropy of each pair's candidate among all candidates, which K clusters stand for.

    log Σ_b e^{⟨u, v_b⟩/τ} ≈ log Σ_k n_k e^{⟨u, c_k⟩/τ} + uᵀWu/(2τ²), with size n_k and centre c_k
    of each cluster and one covariance W within clusters. K = 1 is the second-order softmax, and as
    many clusters as candidates give the exact one if each has its row as centre; centres of past
    batches lag behind. Candidates are weighted by
    `Batch.candidate_weight`, queries as their pairs. Clusters are kept as averages over batches;
    a batch is learned from after its loss, but for the first one, which has no other.

    A candidate v of cluster k is pushed by the derivative of the same sum through c_k and W,
    Σ_a p_ak u_a/(n_k τ) + Γ(v − c_k)/(N τ²), Γ = Σ_a u_a ⊗ u_a over queries, where p_ak u_a and Γ
    are averages over past batches.

    In evaluation mode (`eval()`) clusters stay as they are; before there are any, the batch's own
    serve, and are forgotten. Until a batch has a candidate of weight above 0, none are pushed.

    Args:
        size: N, the candidates that are told apart.
        temperature: τ; the scores are ⟨u, v⟩/τ.
        clusters: K.
        rate: α of the averages.
    Source: docs/method.md, "Softmax over clusters".
    """

    def __init__(
        self,
        size: int,
        temperature: float = 1.0,
        clusters: int = 512,
        rate: float = 0.05,
    ) -> None:
        super().__init__()
        self.size = size
        self.temperature = temperature
        self.number = clusters
        self.rate = rate
        # Made by the first batch, which tells D.
        self.moments: ClusterMoments | None = None

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        query, candidate = encoded.query, encoded.candidate
        weight = batch.candidate_weight[:, 0]
        kept = self._kept(candidate)
        first = not int(kept.batches)
        if first:
            if not bool(weight.any()):  # no candidate to make clusters of
                return math.log(self.size) - score(encoded).mean() / self.temperature
            kept = kept if self.training else copy.deepcopy(kept)
            kept.learn_candidates(candidate.detach(), weight)
        clusters = kept.clusters().to(candidate)
        logits = query @ clusters.centre.T / self.temperature + clusters.log_share
        shares = logits.detach().softmax(1)
        if first:
            kept.learn_queries(shares, query.detach())
            clusters = kept.clusters().to(candidate)
        second = (query @ clusters.within * query).sum(-1) / (2 * self.temperature**2)
        partition = torch.logsumexp(logits, dim=1) + second
        loss = partition.mean() + math.log(self.size) - score(encoded).mean() / self.temperature
        # The same sum by the candidates: its gradient counts, and its value is taken off.
        other = (weight * self._pushed(candidate, clusters)).mean()
        if self.training and not first:
            kept.learn_queries(shares, query.detach())
            kept.learn_candidates(candidate.detach(), weight)
        return loss + other - other.detach()

    def _pushed(self, candidate: Tensor, clusters: Clusters) -> Tensor:
        """Return what has each candidate's push as its gradient, [B]: through its cluster."""
        of = clusters.assign(candidate.detach())
        moved = candidate - clusters.centre[of]
        line = (clusters.push[of] * candidate).sum(-1)
        square = (moved @ clusters.gramian * moved).sum(-1)
        line = line / clusters.log_share[of].exp() / self.temperature
        return line + square / (2 * self.temperature**2)

    def _kept(self, rows: Tensor) -> ClusterMoments:
        """Return the clusters, on the device of the rows; the first call makes them."""
        if self.moments is None:
            dtype = torch.promote_types(rows.dtype, torch.float32)
            self.moments = self._made(rows.shape[1], dtype).to(rows.device)
        elif self.moments.sums.device != rows.device:
            self.moments = self.moments.to(rows.device)
        return self.moments

    def _made(self, dim: int, dtype: torch.dtype) -> ClusterMoments:
        return ClusterMoments(self.number, dim, self.rate, dtype=dtype)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Make clusters of the state's shape, which this module's own children then load."""
        total = state_dict.get(f"{prefix}moments.total")
        self.moments = None if total is None else self._made(len(total), total.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)
