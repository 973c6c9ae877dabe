"""A synthetic corpus of any size with known true probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional

from evergram import Corpus

# Dims of the space whose unit sphere contains the segments and clusters.
LATENT = 8
# The probability of a cluster is ∝ exp(cosine / TEMPERATURE).
TEMPERATURE = 0.05
# Queries per segment and candidates per cluster; members share a point on the sphere.
SEGMENT, CLUSTER = 20, 50
# The share of interactions that depends on the points; the others are with a random cluster.
LOYAL = 0.9
# The r most popular candidates of a cluster of n have (r / n)^(1/POWER) of its interactions.
POWER = 4.0
# Rows of probabilities in memory at once.
BLOCK = 256


@dataclass(frozen=True)
class Planted:
    """Queries and candidates with points on a sphere, and the probability of each interaction.

    Candidate c belongs to cluster c mod K, in order of popularity; query a to segment a mod S."""

    queries: int
    candidates: int
    seed: int = 0  # the seed of all draws

    @property
    def clusters(self) -> int:
        return math.ceil(self.candidates / CLUSTER)

    @property
    def segments(self) -> int:
        return math.ceil(self.queries / SEGMENT)

    def liking(self, segments: Tensor) -> Tensor:
        """Return the probability of each cluster, for segments [n]; float64 [n, K]."""
        draw = torch.Generator().manual_seed(self.seed)
        centres, clusters = (
            functional.normalize(torch.randn(n, LATENT, generator=draw, dtype=torch.float64))
            for n in (self.segments, self.clusters)
        )
        likes = torch.softmax(centres[segments] @ clusters.T / TEMPERATURE, dim=1)
        return LOYAL * likes + (1 - LOYAL) / self.clusters

    def within(self, candidates: Tensor) -> Tensor:
        """Return the probability of candidates [...] within their cluster, float64."""
        cluster, rank = candidates % self.clusters, candidates // self.clusters
        size = self._size(cluster)
        ends = ((rank + 1) / size).pow(1 / POWER), (rank / size).pow(1 / POWER)
        return ends[0] - ends[1]

    def chances(self, segments: Tensor, candidates: Tensor) -> Tensor:
        """Return the probability that the next interaction of a query in `segments` [n] is with
        each of `candidates` [n, k], float64 [n, k]."""
        own, place = torch.unique(segments, return_inverse=True)
        cluster = candidates % self.clusters
        return self.liking(own)[place[:, None], cluster] * self.within(candidates)

    def best(self, segments: Tensor, k: int) -> Tensor:
        """Return the k most probable candidates for segments [n], int64 [n, k]."""
        near = self.liking(segments).topk(min(k, self.clusters)).indices
        ranks = torch.arange(k) * self.clusters
        pool = (near[:, :, None] + ranks).flatten(1)
        chances = torch.where(
            pool < self.candidates,
            self.chances(segments, pool.clamp(max=self.candidates - 1)),
            -1.0,
        )
        return pool.gather(1, chances.topk(min(k, pool.shape[1])).indices)

    def corpus(self, interactions: int) -> Corpus:
        """Return a corpus of drawn interactions, plus one interaction for each candidate without
        any, with a query drawn by the same probabilities.

        Features are a query's segment, a candidate's cluster and twice the log of its rank there,
        so that objects without interactions are described. Their names end in `_key`, because other
        integers would be read as numbers, for which close values mean similar objects.
        """
        draw = torch.Generator().manual_seed(self.seed + 1)
        query = torch.randint(self.queries, (interactions,), generator=draw)
        candidate = self._member(self._cluster(query % self.segments, draw), draw)
        met = torch.zeros(self.candidates, dtype=torch.bool)
        met[candidate] = True
        unmet = torch.nonzero(~met).flatten()
        fans = self._fans(unmet % self.clusters, draw)
        ids, everyone = torch.arange(self.candidates), torch.arange(self.queries)
        band = (2 * (ids // self.clusters + 1).double().log2()).long()
        columns = {"query": torch.cat([query, fans]), "candidate": torch.cat([candidate, unmet])}
        described = (
            {"id": everyone, "segment_key": everyone % self.segments},
            {"id": ids, "cluster_key": ids % self.clusters, "band_key": band},
        )
        pairs, queries, candidates = (
            pa.table({name: column.numpy() for name, column in each.items()})
            for each in (columns, *described)
        )
        return Corpus.of(
            pairs,
            query_features=queries,
            candidate_features=candidates,
        )

    def _size(self, cluster: Tensor) -> Tensor:
        """Return the number of candidates in clusters, float64."""
        return ((self.candidates - cluster - 1) // self.clusters + 1).double()

    def _cluster(self, segment: Tensor, draw: torch.Generator) -> Tensor:
        """Draw a cluster for each segment [n]."""
        chance = torch.rand(len(segment), generator=draw, dtype=torch.float64)
        drawn = torch.empty_like(segment)
        for block in torch.split(torch.arange(self.segments), BLOCK):
            here = torch.nonzero((segment >= block[0]) & (segment <= block[-1])).flatten()
            upto = self.liking(block).cumsum(1)[segment[here] - block[0]]
            drawn[here] = torch.searchsorted(upto, chance[here, None]).flatten()
        return drawn.clamp(max=self.clusters - 1)

    def _member(self, cluster: Tensor, draw: torch.Generator) -> Tensor:
        """Draw a candidate from each cluster [n], by popularity."""
        chance = torch.rand(len(cluster), generator=draw, dtype=torch.float64)
        rank = (chance.pow(POWER) * self._size(cluster)).long()
        return rank * self.clusters + cluster

    def _fans(self, cluster: Tensor, draw: torch.Generator) -> Tensor:
        """Draw a query for each cluster [n], by the cluster's probability for its segment."""
        chance = torch.rand(len(cluster), generator=draw, dtype=torch.float64)
        segment = torch.empty_like(cluster)
        likes = torch.cat(
            [self.liking(b).float() for b in torch.split(torch.arange(self.segments), BLOCK)]
        )
        for block in torch.split(torch.arange(self.clusters), BLOCK):
            here = torch.nonzero((cluster >= block[0]) & (cluster <= block[-1])).flatten()
            upto = likes[:, block].double().T.cumsum(1)
            upto = (upto / upto[:, -1:])[cluster[here] - block[0]]
            segment[here] = torch.searchsorted(upto, chance[here, None]).flatten()
        segment = segment.clamp(max=self.segments - 1)
        sizes = (self.queries - segment - 1) // self.segments + 1
        again = torch.rand(len(cluster), generator=draw, dtype=torch.float64)
        return (again * sizes).long() * self.segments + segment
