"""Batches and pools stand for their measure exactly, whatever is drawn and however."""

from __future__ import annotations

import sys
from dataclasses import fields
from fractions import Fraction
from itertools import pairwise, product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.sampling import (
    GATHERED,
    MIX,
    POOL_FACTOR,
    Batch,
    EntitySampler,
    ExampleSampler,
    PairDraws,
    Pool,
    WholeQuerySampler,
    measure,
    measures,
    proposal,
    weights,
)
from evergram.errors import DataError

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30)
POWERS = [0.0, 0.5, 1.0]
SIDES = ("query", "candidate")


def same(one: list[Batch], other: list[Batch]) -> bool:
    """Whether two lists of batches have the same numbers."""

    def equal(a: Tensor | None, b: Tensor | None) -> bool:
        return a is b is None or (a is not None and b is not None and torch.equal(a, b))

    columns = ([getattr(b, f.name) for b in each for f in fields(Batch)] for each in (one, other))
    return len(one) == len(other) and all(map(equal, *columns))


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
    data = Corpus.of(pairs)
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
    data = Corpus.of(pairs)
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
    data = Corpus.of([(0, 1), (0, 2), (1, 3)], shared_ids=True)
    sampler = ExampleSampler(data, PairDraws(positives="queries"), batch_size=1, seed=0)
    assert data.counts("query").tolist() == [2, 1, 0, 0]
    rate = sampler.rates["candidate"]
    torch.testing.assert_close(rate, torch.tensor([0, 0.25, 0.25, 0.5], dtype=torch.float64))


def test_query_uniform_positives_are_drawn_as_they_say() -> None:
    data = Corpus.of([(0, 0)] * 3 + [(0, 1)] + [(1, 0)] * 2 + [(2, 2)] * 6)
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
    sampler = ExampleSampler(Corpus.of(pairs), draws, batch_size=batch_size, seed=0)
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
    sampler = ExampleSampler(Corpus.of(pairs), draws, batch_size=batch_size, seed=4)
    assert same(list(sampler.epoch(2, start)), list(sampler.epoch(2))[start:])


def test_negatives_are_uniform_over_what_the_query_has_not_met() -> None:
    data = Corpus.of([(0, 0), (0, 1), (1, 2), (1, 3), (2, 4)])
    sampler = ExampleSampler(data, PairDraws(negatives=True), batch_size=5, seed=0)
    drawn = torch.zeros(3, 5)
    for epoch in range(800):
        for batch in sampler.epoch(epoch):
            assert batch.negative is not None
            drawn.index_put_((batch.query, batch.negative), torch.ones(5), accumulate=True)
    expected = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 1], [0.75] * 4 + [0]]) / 3
    shares = drawn / drawn.sum(1, keepdim=True)
    assert float((shares - expected).abs().max()) < 0.03
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


def test_the_sparse_weights_keep_their_sum_however_pairs_are_drawn() -> None:
    data = Corpus.of([(0, 0), (0, 1), (0, 2), (1, 0), (2, 1)])
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
        ExampleSampler(Corpus.of([(0, 0)]), PairDraws(target="value"), batch_size=1, seed=0)


@pytest.mark.parametrize("batch_size", [7, GATHERED])
def test_batches_gathered_together_are_those_gathered_one_by_one(
    monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    columns = {side: torch.randint(9, (100,), generator=draw) for side in ("query", "candidate")}
    corpus = Corpus.of({s: c.numpy() for s, c in columns.items()} | {"value": [1.5] * 100})
    sampler = ExampleSampler(
        corpus, PairDraws("value", negatives=True), batch_size=batch_size, seed=3
    )
    kept = []
    for size in (GATHERED, 20, 1):  # all at once, two batches, one batch
        monkeypatch.setattr("evergram.data.sampling.GATHERED", size)
        kept.append(list(sampler.epoch(2)))
        assert torch.equal(kept[-1][0].query_weight, sampler.query_weights[kept[-1][0].query])
        assert same(kept[-1], kept[0])


def sampler_of(corpus: Corpus, batch_size: int, *, negatives: bool = False) -> WholeQuerySampler:
    draws = PairDraws(positives="whole_queries", negatives=negatives)
    return WholeQuerySampler(corpus, draws, batch_size=batch_size, seed=3)


@settings(max_examples=40, deadline=None)
@given(PAIRS, st.integers(1, 50), st.booleans())
def test_an_epoch_has_every_pair_once_and_each_query_in_one_batch(
    pairs: list[tuple[int, int]], batch_size: int, negatives: bool
) -> None:
    corpus = Corpus.of(pairs)
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
    assert sampler.mean_size is not None
    for b in batches:
        assert b.pair_share is not None
        torch.testing.assert_close(
            b.pair_share, torch.full((len(b.query),), len(b.query) / sampler.mean_size)
        )
    for start in range(len(sampler) + 1):
        assert same(list(sampler.epoch(0, start)), batches[start:])


def test_a_batch_has_as_many_queries_as_have_its_pairs_on_average() -> None:
    corpus = Corpus.of([(q, c) for q in range(10) for c in range(3)])
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
    corpus = Corpus.of(pairs)
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


SCORES = st.lists(
    st.floats(0, 1e6, allow_subnormal=False) | st.just(0.0), min_size=1, max_size=6
).map(lambda values: torch.tensor(values, dtype=torch.float64))


def chance_of(places: tuple[int, ...], chances: Tensor) -> Tensor:
    """Return numbers that lie in the middle of each place's share of [0, 1)."""
    ends = torch.cumsum(chances, 0)
    return torch.stack([ends[i] - chances[i] / 2 for i in places])


@example(torch.tensor([2.4645e-308], dtype=torch.float64))
@example(torch.tensor([1e308, 1e308], dtype=torch.float64))
@settings(max_examples=100, deadline=None)
@given(SCORES)
def test_probabilities_add_up_and_none_is_smaller_than_the_uniform_share(scores: Tensor) -> None:
    chances = proposal(scores)
    assert float(chances.sum()) == pytest.approx(1)
    assert float(chances.min()) >= (1 - 1e-9) * MIX / len(scores)
    if float(scores.max()) >= sys.float_info.min:
        exact = [Fraction(score) for score in scores.tolist()]
        shares = torch.tensor([float(x / sum(exact)) for x in exact], dtype=torch.float64)
        torch.testing.assert_close(chances, (1 - MIX) * shares + MIX / len(scores))
    else:
        torch.testing.assert_close(chances, torch.full_like(chances, 1 / len(scores)))


@settings(max_examples=50, deadline=None)
@given(SCORES)
def test_every_second_pass_together_is_the_pool_exactly(scores: Tensor) -> None:
    """E of the weighted mean of outer products over all outcomes of two draws, by enumeration."""
    size = len(scores)
    draw = torch.Generator().manual_seed(size)
    mu = torch.rand(size, 1, generator=draw, dtype=torch.float64)
    rows = torch.randn(size, 3, generator=draw, dtype=torch.float64)
    whole = torch.einsum("i,id,ie->de", mu[:, 0], rows, rows) / size
    chances = proposal(scores)
    total = torch.zeros(3, 3, dtype=torch.float64)
    for outcome in product(range(size), repeat=2):
        pool = Pool(torch.arange(size) + 10, mu, chance_of(outcome, chances))
        kept = pool.resample(scores)
        assert (kept.ids - 10).tolist() == list(outcome)
        u = rows[kept.ids - 10]
        estimate = torch.einsum("i,id,ie->de", kept.weights[:, 0], u, u) / 2
        total += chances[list(outcome)].prod() * estimate
    torch.testing.assert_close(total, whole, rtol=1e-10, atol=1e-12)


def test_both_passes_together_are_the_gramian_of_the_measure_exactly() -> None:
    """All pools of three of four entities, times all second passes, by enumeration in float64."""
    for power in [0.0, 0.5, 1.0]:
        counts = torch.tensor([1, 7, 0, 2])
        rate, share = measure(counts, 1.0), measure(counts, power)
        share_of_pool = torch.where(rate > 0, share / rate.clamp(min=1e-300), 0.0)[:, None]
        rows = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        other = torch.diag(torch.tensor([3.0, 0.1], dtype=torch.float64))
        total = torch.zeros(2, 2, dtype=torch.float64)
        for ids in product([0, 1, 3], repeat=3):
            pool_ids = torch.tensor(ids)
            mu = share_of_pool[pool_ids]
            scores = mu[:, 0] * ((rows[pool_ids] @ other) * rows[pool_ids]).sum(1)
            chances = proposal(scores)
            for outcome in product(range(3), repeat=2):
                kept = Pool(pool_ids, mu, chance_of(outcome, chances)).resample(scores)
                u = rows[kept.ids]
                chance = rate[pool_ids].prod() * chances[list(outcome)].prod()
                total += chance * torch.einsum("i,id,ie->de", kept.weights[:, 0], u, u) / 2
        expected = torch.einsum("i,id,ie->de", share, rows, rows)
        torch.testing.assert_close(total, expected, rtol=1e-10, atol=1e-12)


def test_a_weight_grows_by_the_inverse_of_the_uniform_share_at_most() -> None:
    mu = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))
    scores = torch.zeros(50)
    scores[7] = 1.0
    chance = torch.linspace(0, 0.999, 400, dtype=torch.float64)
    kept = Pool(torch.arange(50), mu, chance).resample(scores)
    assert bool((kept.weights <= mu[kept.ids] / MIX * (1 + 1e-6)).all())
    share = float((kept.ids == 7).float().mean())
    assert share == pytest.approx(1 - MIX + MIX / 50, abs=0.01)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_of_a_training_that_has_diverged_draw_something(bad: float) -> None:
    """The loss is then not finite either, and that is what the training reports."""
    pool = Pool(torch.arange(40), torch.ones(40, 2), torch.linspace(0, 0.9, 7).double())
    assert len(pool.resample(torch.tensor([bad] * 40)).ids) == 7


COUNTS = torch.tensor([1, 2])
SHARE = torch.tensor([[0.5], [0.5]], dtype=torch.float64)


def drawn(kind: str, seed: int = 3, epoch: int = 0, start: int = 0) -> list[list[float]]:
    counts = torch.arange(1, 30)
    share = measures(counts, [0.0, 1.0])
    sampler: EntitySampler
    if kind == "entities":
        sampler = EntitySampler(counts, share, kind="sqrt", batch_size=7, seed=seed)
    else:
        sampler = EntitySampler(
            counts, share, kind="adaptive", pool_size=40, batch_size=7, seed=seed
        )
    draws = list(sampler.epoch(epoch, 4, start))
    sizes = {(len(d.ids), *([len(d.chance)] if isinstance(d, Pool) else [])) for d in draws}
    assert sizes <= ({(7,)} if kind == "entities" else {(40, 7)})
    return [[*d.ids.tolist(), *(d.chance.tolist() if isinstance(d, Pool) else [])] for d in draws]


@pytest.mark.parametrize("kind", ["entities", "pools"])
def test_draws_are_a_function_of_seed_and_epoch(kind: str) -> None:
    first = drawn(kind)
    assert first == drawn(kind)
    assert first != drawn(kind, epoch=1)
    assert first != drawn(kind, seed=4)
    assert all(a != b for a, b in pairwise(first))
    assert all(drawn(kind, start=start) == first[start:] for start in range(6))


def test_the_first_pass_draws_by_popularity_with_the_weights_of_the_measures() -> None:
    counts = torch.tensor([1, 9, 0, 4, 2])
    share = measures(counts, [0.0, 1.0])
    sampler = EntitySampler(counts, share, kind="adaptive", pool_size=500, batch_size=3, seed=0)
    drawn = torch.zeros(5)
    for pool in sampler.epoch(0, 200):
        drawn += torch.bincount(pool.ids, minlength=5)
        assert torch.equal(pool.weights, weights(share, measure(counts, 1.0))[pool.ids])
    torch.testing.assert_close(drawn / drawn.sum(), counts / counts.sum(), rtol=0.05, atol=1e-9)


def test_a_pool_is_a_multiple_of_what_is_kept() -> None:
    sampler = EntitySampler(COUNTS, SHARE, kind="adaptive", batch_size=4, seed=0)
    (pool,) = sampler.epoch(0, 1)
    assert isinstance(pool, Pool)
    assert (len(pool.ids), len(pool.chance)) == (POOL_FACTOR * 4, 4)
