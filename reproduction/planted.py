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
POWER = 5.0


def planted_corpus(*, queries: int, candidates: int, interactions: int, seed: int = 0) -> Corpus:
    """Return a corpus whose size costs only its interactions, up to millions of candidates.

    Every query has `TASTES` clusters. An interaction is with a candidate of one of them, the
    cluster's popular ones more often, or with any candidate. Every candidate is in the corpus: one
    that nobody met is met once, by a query with a taste for its cluster where there is one. Its
    features are its cluster and the logarithm of its rank there, so that it need not be met to be
    known.

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
    fans = _fans(unmet % clusters, taste, clusters, draw)
    columns = {"query": torch.cat([query, fans]), "candidate": torch.cat([candidate, unmet])}
    ids = torch.arange(candidates)
    band = (ids // clusters + 1).double().log2().long()
    features = {"id": ids, "cluster": ids % clusters, "band": band}
    tables = [
        pa.table({name: column.numpy() for name, column in each.items()})
        for each in (columns, features)
    ]
    return Corpus.from_tables(tables[0], candidate_features=tables[1], source="The planted corpus")


def _fans(cluster: Tensor, taste: Tensor, clusters: int, draw: torch.Generator) -> Tensor:
    """Return, for each cluster [n], a query that has a taste for it, or any if none has."""
    owner = torch.arange(len(taste)).repeat_interleave(taste.shape[1])
    order = torch.argsort(taste.flatten(), stable=True)
    count = torch.bincount(taste.flatten(), minlength=clusters)
    first = count.cumsum(0) - count
    chance = torch.rand(len(cluster), generator=draw, dtype=torch.float64)
    place = first[cluster] + (chance * count[cluster]).long()
    any_query = (chance * len(taste)).long()
    fan = owner[order][place.clamp(max=len(owner) - 1)]
    return torch.where(count[cluster] > 0, fan, any_query)


def _member(cluster: Tensor, clusters: int, candidates: int, draw: torch.Generator) -> Tensor:
    """Return a candidate of each cluster, by a power law; candidate c is of cluster c mod K."""
    size = (candidates - cluster - 1) // clusters + 1
    chance = torch.rand(len(cluster), generator=draw, dtype=torch.float64)
    rank = (chance.pow(POWER) * size).long().clamp(max=candidates - 1)
    return torch.minimum(rank, size - 1) * clusters + cluster
