"""Whole queries: every pair once an epoch, each batch with all pairs of its queries."""

from __future__ import annotations

import pyarrow as pa
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch, PairDraws
from evergram.data.whole_queries.whole_query_sampler import WholeQuerySampler

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=40)


def corpus_of(pairs: list[tuple[int, int]]) -> Corpus:
    query, candidate = zip(*pairs, strict=True)
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate}))


def sampler_of(corpus: Corpus, batch_size: int, *, negatives: bool = False) -> WholeQuerySampler:
    draws = PairDraws(positives="whole_queries", negatives=negatives)
    return WholeQuerySampler(corpus, draws, batch_size=batch_size, seed=3)


def same(one: list[Batch], other: list[Batch]) -> bool:
    names = ("query", "candidate", "negative", "pair_share")
    return len(one) == len(other) and all(
        torch.equal(getattr(a, name), getattr(b, name))
        for a, b in zip(one, other, strict=True)
        for name in names
        if getattr(a, name) is not None
    )


@settings(max_examples=40, deadline=None)
@given(PAIRS, st.integers(1, 50), st.booleans())
def test_an_epoch_has_every_pair_once_and_each_query_in_one_batch(
    pairs: list[tuple[int, int]], batch_size: int, negatives: bool
) -> None:
    corpus = corpus_of(pairs)
    sampler = sampler_of(corpus, batch_size, negatives=negatives)
    batches = list(sampler.epoch(0))
    assert len(batches) == len(sampler)
    seen = torch.cat([torch.stack([b.query, b.candidate]) for b in batches], dim=1)
    own = torch.stack([corpus.column("query"), corpus.column("candidate")])
    assert sorted(seen.T.tolist()) == sorted(own.T.tolist())
    met = [set(b.query.tolist()) for b in batches]
    assert sum(map(len, met)) == len(set.union(*met))
    assert max(map(len, met)) == sampler.queries
    # Σ over an epoch's batches of share-weighted sums is Σ over pairs, over the expected pairs.
    for b in batches:
        assert b.pair_share is not None
        torch.testing.assert_close(
            b.pair_share, torch.full((len(b.query),), len(b.query) / sampler.expected)
        )
    for start in range(len(sampler) + 1):
        assert same(list(sampler.epoch(0, start)), batches[start:])


def test_a_batch_has_as_many_queries_as_have_its_pairs_on_average() -> None:
    corpus = corpus_of([(q, c) for q in range(10) for c in range(3)])
    sampler = sampler_of(corpus, 12)
    assert (sampler.queries, sampler.batch_size, len(sampler)) == (4, 12, 3)
    assert sampler_of(corpus, 1).queries == 1
    assert len(sampler_of(corpus, 1000)) == 1


def test_weights_have_the_measure_as_their_mean_though_batches_vary_in_size() -> None:
    """Over many epochs, with a few queries that have most pairs (trap 2)."""
    degrees = (60 / torch.arange(1.0, 41).pow(0.8)).long().clamp(min=2)
    draw = torch.Generator().manual_seed(0)
    pairs = [
        (q, c)
        for q, n in enumerate(degrees)
        for c in torch.randperm(80, generator=draw)[:n].tolist()
    ]
    corpus = corpus_of(pairs)
    weight = torch.rand(len(corpus), generator=draw)
    draws = PairDraws(positives="whole_queries")
    # Five queries a batch: none is left over for a smaller one.
    size = len(corpus) // 8
    sampler = WholeQuerySampler(corpus, draws, batch_size=size, seed=3, pair_weight=weight)
    assert sampler.queries == 5
    length = corpus.counts("query").double()
    totals = {"query": torch.zeros(40).double(), "candidate": torch.zeros(80).double()}
    weighted, batches = 0.0, 0
    for epoch in range(60):
        for batch in sampler.epoch(epoch):
            rows, batches = len(batch.query), batches + 1
            for side, ids in (("query", batch.query), ("candidate", batch.candidate)):
                own = getattr(batch, f"{side}_weight")[:, 0].double() / rows
                totals[side].index_add_(0, ids, own)
            assert batch.pair_weight is not None
            weighted += float((batch.pair_weight * length[batch.query]).mean())
    for side, total in totals.items():
        expected = sampler.measures[side][:, 0].double()
        torch.testing.assert_close(total / batches, expected, rtol=0.03, atol=0)
    exact = float((weight * length[corpus.column("query")]).mean())
    assert abs(weighted / batches / exact - 1) < 0.02
