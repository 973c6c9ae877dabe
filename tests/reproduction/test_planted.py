"""The planted corpus."""

from __future__ import annotations

import pyarrow as pa
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduction.planted import CLUSTERS, planted_corpus

from evergram import Corpus


def ids(corpus: Corpus, side: str) -> torch.Tensor:
    entities = corpus.queries if side == "query" else corpus.candidates
    keys = torch.tensor(entities.vocabulary.keys.to_pylist())
    return keys[corpus.column(side)]


@settings(max_examples=20, deadline=None)
@given(
    queries=st.integers(1, 40),
    candidates=st.integers(1, 500),
    interactions=st.integers(1, 900),
    seed=st.integers(0, 5),
)
def test_every_candidate_is_there_and_no_other(
    queries: int, candidates: int, interactions: int, seed: int
) -> None:
    corpus = planted_corpus(
        queries=queries, candidates=candidates, interactions=interactions, seed=seed
    )
    assert sorted(corpus.candidates.vocabulary.keys.to_pylist()) == list(range(candidates))
    assert len(corpus) >= interactions
    assert int(ids(corpus, "query").max()) < queries


def test_queries_keep_to_few_clusters_and_to_popular_candidates() -> None:
    corpus = planted_corpus(queries=50, candidates=10_000, interactions=40_000)
    query, candidate = ids(corpus, "query")[:40_000], ids(corpus, "candidate")[:40_000]
    counts = torch.zeros(50, CLUSTERS).index_put_(
        (query, candidate % CLUSTERS), torch.ones(40_000), accumulate=True
    )
    top = counts.topk(3, dim=1).values.sum(1) / counts.sum(1)
    assert float(top.mean()) > 0.7  # three of a hundred clusters; chance is 0.03
    rank = candidate // CLUSTERS
    assert float((rank < 10).float().mean()) > 0.3  # a tenth of each cluster


def test_the_seed_decides() -> None:
    tables = [
        planted_corpus(queries=9, candidates=30, interactions=99, seed=s).interactions
        for s in (0, 0, 1)
    ]
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])
    assert isinstance(tables[0], pa.Table)
