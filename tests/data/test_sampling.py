"""Batches stand for their measure exactly, whatever is drawn and however."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.sampling import (
    GATHERED,
    Batch,
    EntitySampler,
    ExampleSampler,
    PairDraws,
    measure,
    measures,
)
from evergram.errors import DataError

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30)
POWERS = [0.0, 0.5, 1.0]
SIDES = ("query", "candidate")


def corpus(pairs: list[tuple[int, int]]) -> Corpus:
    query, candidate = zip(*pairs, strict=True)
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate}))


def gramian(embeddings: Tensor, counts: Tensor, power: float) -> Tensor:
    """Entity by entity."""
    total = torch.zeros(embeddings.shape[1], embeddings.shape[1], dtype=torch.float64)
    shares = [float(c) ** power if c else 0.0 for c in counts]
    for row, share in enumerate(shares):
        total += share / sum(shares) * torch.outer(embeddings[row], embeddings[row])
    return total


@settings(max_examples=50, deadline=None)
@given(PAIRS)
def test_weighted_batches_have_the_gramians_of_the_measures(pairs: list[tuple[int, int]]) -> None:
    data = corpus(pairs)
    chosen = {s: measures(data.counts(s), POWERS) for s in ("query", "candidate")}
    sampler = ExampleSampler(data, batch_size=1, seed=0, measures=chosen)
    draw = torch.Generator().manual_seed(1)
    for side in ("query", "candidate"):
        counts = data.counts(side)
        embeddings = torch.randn(len(counts), 3, generator=draw, dtype=torch.float64)
        for r, power in enumerate(POWERS):
            total = torch.zeros(3, 3, dtype=torch.float64)
            for batch in sampler.epoch(0):
                u = embeddings[getattr(batch, side)]
                weight = getattr(batch, f"{side}_weight")[:, r]
                total += (u * weight[:, None].double()).T @ u
            expected = gramian(embeddings, counts, power)
            torch.testing.assert_close(total / len(pairs), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(PAIRS)
def test_query_uniform_positives_carry_their_own_weights(pairs: list[tuple[int, int]]) -> None:
    """E over the sampler's chances, summed pair by pair: a query uniformly, then one of its."""
    data = corpus(pairs)
    sampler = ExampleSampler(
        data,
        PairDraws(positives="queries"),
        batch_size=1,
        seed=0,
        measures={"candidate": measures(data.counts("candidate"), POWERS)},
    )
    degrees = data.counts("query")
    embeddings = torch.eye(len(data.candidates), dtype=torch.float64)
    for r, power in enumerate(POWERS):
        total = torch.zeros_like(embeddings)
        for a, b in zip(data.column("query"), data.column("candidate"), strict=True):
            chance = 1 / len(degrees) / float(degrees[a])
            weight = float(sampler.candidate_weights[b, r])
            total += chance * weight * torch.outer(embeddings[b], embeddings[b])
        expected = gramian(embeddings, data.counts("candidate"), power)
        torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-6)


def test_entities_that_are_never_a_query_take_no_chance_of_being_drawn() -> None:
    """Where both sides share their ids, some entities are candidates alone."""
    table = pa.table({"query": [0, 0, 1], "candidate": [1, 2, 3]})
    data = Corpus.from_tables(table, shared_ids=True)
    sampler = ExampleSampler(data, PairDraws(positives="queries"), batch_size=1, seed=0)
    assert data.counts("query").tolist() == [2, 1, 0, 0]
    rate = sampler.rates["candidate"]
    torch.testing.assert_close(rate, torch.tensor([0, 0.25, 0.25, 0.5], dtype=torch.float64))


def test_query_uniform_positives_are_drawn_as_they_say() -> None:
    data = corpus([(0, 0)] * 3 + [(0, 1)] + [(1, 0)] * 2 + [(2, 2)] * 6)
    sampler = ExampleSampler(data, PairDraws(positives="queries"), batch_size=12, seed=0)
    drawn = torch.zeros(3, 3)
    for epoch in range(1000):
        for batch in sampler.epoch(epoch):
            drawn.index_put_((batch.query, batch.candidate), torch.ones(12), accumulate=True)
    expected = torch.tensor([[0.75, 0.25, 0], [1, 0, 0], [0, 0, 1]]) / 3
    assert float((drawn / drawn.sum() - expected).abs().max()) < 0.015


@settings(max_examples=50, deadline=None)
@given(PAIRS, st.integers(1, 8), st.sampled_from(["examples", "queries"]), st.booleans())
def test_a_short_batch_holds_what_fills_no_batch(
    pairs: list[tuple[int, int]], batch_size: int, positives: str, short: bool
) -> None:
    draws = PairDraws(positives=positives, short_batch=short)
    sampler = ExampleSampler(corpus(pairs), draws, batch_size=batch_size, seed=0)
    batches = list(sampler.epoch(3))
    assert len(batches) == len(sampler)
    full, rest = divmod(len(pairs), sampler.batch_size)
    assert [len(b.query) for b in batches] == [sampler.batch_size] * full + [rest] * (
        short and rest > 0
    )
    if short and positives == "examples":
        drawn = torch.stack([torch.cat([getattr(b, s) for b in batches]) for s in SIDES])
        observed = torch.stack([sampler.query, sampler.candidate])
        assert sorted(map(tuple, drawn.T.tolist())) == sorted(map(tuple, observed.T.tolist()))


@settings(max_examples=100, deadline=None)
@given(
    PAIRS,
    st.integers(1, 8),
    st.sampled_from(["examples", "queries"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
)
def test_an_epoch_goes_on_from_any_batch(
    pairs: list[tuple[int, int]],
    batch_size: int,
    positives: str,
    negatives: bool,
    short: bool,
    start: int,
) -> None:
    draws = PairDraws(positives=positives, negatives=negatives, short_batch=short)
    sampler = ExampleSampler(corpus(pairs), draws, batch_size=batch_size, seed=4)
    whole, rest = list(sampler.epoch(2)), list(sampler.epoch(2, start))
    assert len(rest) == max(0, len(whole) - start)
    for one, other in zip(whole[start:], rest, strict=True):
        for field in fields(Batch):
            a, b = getattr(one, field.name), getattr(other, field.name)
            assert (a is None and b is None) or torch.equal(a, b), field.name


def test_negatives_are_uniform_over_what_the_query_has_not_met() -> None:
    data = corpus([(0, 0), (0, 1), (1, 2), (1, 3), (2, 4)])
    sampler = ExampleSampler(data, PairDraws(negatives=True), batch_size=5, seed=0)
    drawn = torch.zeros(3, 5)
    for epoch in range(2000):
        for batch in sampler.epoch(epoch):
            assert batch.negative is not None
            drawn.index_put_((batch.query, batch.negative), torch.ones(5), accumulate=True)
    expected = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 1], [0.75] * 4 + [0]]) / 3
    shares = drawn / drawn.sum(1, keepdim=True)
    assert float((shares - expected).abs().max()) < 0.02
    assert bool((drawn[expected == 0] == 0).all())


def test_entities_drawn_apart_stand_for_the_measure() -> None:
    for kind in ["uniform", "sqrt", "linear"]:
        for power in POWERS:
            counts = torch.tensor([1, 9, 0, 4, 2])
            share = measure(counts, power)
            sampler = EntitySampler(counts, share[:, None], kind=kind, batch_size=500, seed=0)
            weighted = torch.zeros(5, dtype=torch.float64)
            plain = torch.zeros(5)
            for draw in sampler.epoch(0, 400):
                weighted.index_add_(0, draw.ids, draw.weights[:, 0].double())
                plain += torch.bincount(draw.ids, minlength=5)
            torch.testing.assert_close(weighted / 200_000, share, rtol=0.05, atol=1e-9)
            rate = counts.double() ** {"uniform": 0, "sqrt": 0.5, "linear": 1}[kind] * (counts > 0)
            torch.testing.assert_close(
                plain.double() / 200_000, rate / rate.sum(), rtol=0.05, atol=1e-9
            )


def test_entity_draws_are_a_function_of_seed_and_epoch() -> None:
    counts = torch.arange(1, 30)
    share = measure(counts, 0)[:, None]
    one, two = (EntitySampler(counts, share, kind="sqrt", batch_size=7, seed=3) for _ in range(2))
    first = [d.ids.tolist() for d in one.epoch(0, 4)]
    assert first == [d.ids.tolist() for d in two.epoch(0, 4)]
    assert first != [d.ids.tolist() for d in one.epoch(1, 4)]
    assert all(a != b for a, b in pairwise(first))
    for start in range(6):
        assert [d.ids.tolist() for d in two.epoch(0, 4, start)] == first[start:]


def test_the_sparse_weights_keep_their_sum_however_pairs_are_drawn() -> None:
    data = corpus([(0, 0), (0, 1), (0, 2), (1, 0), (2, 1)])
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    for positives, chance in (("examples", [1 / 5] * 5), ("queries", [1 / 9] * 3 + [1 / 3] * 2)):
        sampler = ExampleSampler(
            data, PairDraws(positives=positives), batch_size=1, seed=0, pair_weight=weight
        )
        assert sampler.pair_weight is not None
        expectation = torch.tensor(chance) * sampler.pair_weight
        torch.testing.assert_close(expectation, weight / 5)


def test_values_as_targets_need_values() -> None:
    with pytest.raises(DataError, match=r"task\.target"):
        ExampleSampler(corpus([(0, 0)]), PairDraws(target="value"), batch_size=1, seed=0)


@pytest.mark.parametrize("batch_size", [7, GATHERED])
def test_batches_gathered_together_are_those_gathered_one_by_one(
    monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    columns = {side: torch.randint(9, (100,), generator=draw) for side in ("query", "candidate")}
    corpus = Corpus.from_tables(
        pa.table({s: c.numpy() for s, c in columns.items()} | {"value": [1.5] * 100})
    )
    sampler = ExampleSampler(
        corpus, PairDraws("value", negatives=True), batch_size=batch_size, seed=3
    )
    kept = []
    for size in (GATHERED, 20, 1):  # all at once, two batches, one batch
        monkeypatch.setattr("evergram.data.sampling.GATHERED", size)
        kept.append(list(sampler.epoch(2)))
    for batches in zip(*kept, strict=True):
        first = batches[0]
        assert torch.equal(first.query_weight, sampler.query_weights[first.query])
        for other in batches[1:]:
            for field in fields(Batch):
                a, b = getattr(first, field.name), getattr(other, field.name)
                assert (a is None and b is None) or torch.equal(a, b), field.name
