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


def test_epochs_differ_and_repeat() -> None:
    corpus = corpus_of([(q, c) for q in range(10) for c in range(1 + q % 4)])
    one, other = sampler_of(corpus, 5), sampler_of(corpus, 5)
    assert same(list(one.epoch(1)), list(other.epoch(1)))
    assert not same(list(one.epoch(1)), list(one.epoch(2)))


def test_a_batch_has_as_many_queries_as_have_its_pairs_on_average() -> None:
    corpus = corpus_of([(q, c) for q in range(10) for c in range(3)])
    sampler = sampler_of(corpus, 12)
    assert (sampler.queries, sampler.batch_size, len(sampler)) == (4, 12, 3)
    assert sampler_of(corpus, 1).queries == 1
    assert len(sampler_of(corpus, 1000)) == 1
