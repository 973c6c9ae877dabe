"""A planted corpus as large as one likes: clusters of candidates that queries have tastes for."""

from __future__ import annotations

import pyarrow as pa
import torch
from torch import Tensor

from evergram import Corpus

CLUSTERS = 100
TASTES = 3
# The share of a query's interactions that its tastes explain; the others are with any candidate.
LOYAL = 0.8
# Candidates of a cluster are met with probability ∝ rank^-(1 − 1/POWER), about.
POWER = 3.0


def planted_corpus(*, queries: int, candidates: int, interactions: int, seed: int = 0) -> Corpus:
    """Return a corpus whose size costs only its interactions, up to millions of candidates.

    Every query has `TASTES` clusters. An interaction is with a candidate of one of them, the
    cluster's popular ones more often, or with any candidate. Every candidate is in the corpus: one
    that nobody met is met once.

    Args:
        seed: of all draws.
    """
    draw = torch.Generator().manual_seed(seed)
    clusters = min(CLUSTERS, candidates)
    taste = torch.randint(clusters, (queries, TASTES), generator=draw)
    query = torch.randint(queries, (interactions,), generator=draw)
    which = torch.randint(TASTES, (interactions,), generator=draw)
    cluster = taste[query, which]
    strays = torch.rand(interactions, generator=draw) >= LOYAL
    anywhere = torch.randint(clusters, (interactions,), generator=draw)
    candidate = _member(torch.where(strays, anywhere, cluster), clusters, candidates, draw)
    met = torch.zeros(candidates, dtype=torch.bool)
    met[candidate] = True
    unmet = torch.nonzero(~met).flatten()
    fans = torch.randint(queries, (len(unmet),), generator=draw)
    columns = {"query": torch.cat([query, fans]), "candidate": torch.cat([candidate, unmet])}
    table = pa.table({name: column.numpy() for name, column in columns.items()})
    return Corpus.from_tables(table, source="The planted corpus")


def _member(cluster: Tensor, clusters: int, candidates: int, draw: torch.Generator) -> Tensor:
    """Return a candidate of each cluster, by a power law; candidate c is of cluster c mod K."""
    size = (candidates - cluster - 1) // clusters + 1
    chance = torch.rand(len(cluster), generator=draw, dtype=torch.float64)
    rank = (chance.pow(POWER) * size).long().clamp(max=candidates - 1)
    return torch.minimum(rank, size - 1) * clusters + cluster
