"""Batches stand for their measure exactly."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.corpus import Corpus
from evergram.data.sampling import ExampleSampler, measure
from evergram.errors import DataError

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30)


def corpus(pairs: list[tuple[int, int]]) -> Corpus:
    query, candidate = zip(*pairs, strict=True)
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate}))


@settings(max_examples=50, deadline=None)
@given(PAIRS, st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 40))
def test_weighted_batches_have_the_gramian_of_the_measure(
    pairs: list[tuple[int, int]], power: float, batch_size: int
) -> None:
    data = corpus(pairs)
    sampler = ExampleSampler(data, batch_size=1, seed=0, query_power=power, candidate_power=power)
    draw = torch.Generator().manual_seed(1)
    embeddings = torch.randn(len(data.queries), 3, generator=draw, dtype=torch.float64)
    total = torch.zeros(3, 3, dtype=torch.float64)
    for batch in sampler.epoch(0):
        u = embeddings[batch.query]
        total += (u * batch.query_weight[:, None].double()).T @ u
    counts = torch.bincount(data.column("query"))
    expected = torch.zeros(3, 3, dtype=torch.float64)
    shares = [float(c) ** power for c in counts]
    for row, share in enumerate(shares):
        expected += share / sum(shares) * torch.outer(embeddings[row], embeddings[row])
    torch.testing.assert_close(total / len(pairs), expected, rtol=1e-5, atol=1e-6)


def test_the_measures_by_name() -> None:
    counts = torch.tensor([1, 3, 0])
    assert measure(counts, 0.0).tolist() == [0.5, 0.5, 0.0]
    assert measure(counts, 1.0).tolist() == [0.25, 0.75, 0.0]


def test_an_epoch_is_every_pair_once_and_the_same_for_the_same_seed() -> None:
    data = corpus([(i, i % 3) for i in range(12)])
    one = ExampleSampler(data, batch_size=4, seed=3)
    other = ExampleSampler(data, batch_size=4, seed=3)
    seen = torch.cat([b.query for b in one.epoch(0)])
    assert sorted(seen.tolist()) == list(range(12))
    assert torch.equal(seen, torch.cat([b.query for b in other.epoch(0)]))
    assert not torch.equal(seen, torch.cat([b.query for b in one.epoch(1)]))


def test_values_as_targets_need_values() -> None:
    with pytest.raises(DataError, match=r"task\.target"):
        ExampleSampler(corpus([(0, 0)]), batch_size=1, seed=0, target="value")
