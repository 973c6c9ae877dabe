"""A planted corpus as large as one likes, whose true probabilities are known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional

from evergram import Corpus

# Dims of the sphere on which queries and clusters of candidates lie.
LATENT = 8
# A cluster is liked with probability ∝ exp(cosine / TEMPERATURE).
TEMPERATURE = 0.05
# Queries that share a place, and candidates that share one: segments and clusters.
SEGMENT, CLUSTER = 20, 50
# The share of interactions that follows places; the others are with any cluster.
LOYAL = 0.9
# The r most popular of a cluster of n have (r / n)^(1/POWER) of its interactions.
POWER = 4.0
# Rows of probabilities that are held at once.
BLOCK = 256


@dataclass(frozen=True)
class Planted:
    """Queries and candidates with places on a sphere, and the probability of each interaction.

    Candidate c is of cluster c mod K, in the order of popularity; query a is of segment a mod S.

    Args:
        seed: of all draws.
    """

    queries: int
    candidates: int
    seed: int = 0

    @property
    def clusters(self) -> int:
        return math.ceil(self.candidates / CLUSTER)

    @property
    def segments(self) -> int:
        return math.ceil(self.queries / SEGMENT)

    def liking(self, segments: Tensor) -> Tensor:
        """Return the probability of each cluster for segments [n], float64 [n, K]."""
        draw = torch.Generator().manual_seed(self.seed)
        centres, clusters = (
            functional.normalize(torch.randn(n, LATENT, generator=draw, dtype=torch.float64))
            for n in (self.segments, self.clusters)
        )
        likes = torch.softmax(centres[segments] @ clusters.T / TEMPERATURE, dim=1)
        return LOYAL * likes + (1 - LOYAL) / self.clusters

    def within(self, candidates: Tensor) -> Tensor:
        """Return the probability of candidates [...] among those of their cluster, float64."""
        cluster, rank = candidates % self.clusters, candidates // self.clusters
        size = self._size(cluster)
        ends = ((rank + 1) / size).pow(1 / POWER), (rank / size).pow(1 / POWER)
        return ends[0] - ends[1]

    def chances(self, segments: Tensor, candidates: Tensor) -> Tensor:
        """Return the probability that the next interaction of a query of `segments` [n] is with
        each of `candidates` [n, k], float64 [n, k]."""
        own, place = torch.unique(segments, return_inverse=True)
        cluster = candidates % self.clusters
        return self.liking(own)[place[:, None], cluster] * self.within(candidates)

    def best(self, segments: Tensor, k: int) -> Tensor:
        """Return the k candidates of the largest probability for segments [n], int64 [n, k]."""
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
        """Return a corpus of drawn interactions, and of one more for each candidate that nobody
        met, with a query that is as likely to meet it as any other interaction says.

        Features are a query's segment, a candidate's cluster and twice the logarithm of its rank
        there, so that an object need not be met to be known. They are keys, by their names: other
        integers would be read as numbers, of which neighbours are alike.
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
        """Return how many candidates clusters have, float64."""
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
        """Draw a candidate of each cluster [n], by popularity."""
        chance = torch.rand(len(cluster), generator=draw, dtype=torch.float64)
        rank = (chance.pow(POWER) * self._size(cluster)).long()
        return rank * self.clusters + cluster

    def _fans(self, cluster: Tensor, draw: torch.Generator) -> Tensor:
        """Draw a query for each cluster [n], by how much its segment likes it."""
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
