"""Two passes stand for the measure exactly, and pools are a function of seed and epoch."""

from __future__ import annotations

import sys
from fractions import Fraction
from itertools import pairwise, product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.data.pools import MIX, POOL_FACTOR, Pool, PoolSampler, entity_sampler, proposal
from evergram.data.sampling import measure, measures, weights

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


def pools(kind_seed: int = 3, epoch: int = 0, start: int = 0) -> list[Pool]:
    counts = torch.arange(1, 30)
    share = measures(counts, [0.0, 1.0])
    sampler = PoolSampler(counts, share, pool_size=40, batch_size=7, seed=kind_seed)
    return [draw for draw in sampler.epoch(epoch, 4, start) if isinstance(draw, Pool)]


def test_pools_are_a_function_of_seed_and_epoch() -> None:
    def key(pool: Pool) -> list[float]:
        return [*pool.ids.tolist(), *pool.chance.tolist()]

    first = [key(p) for p in pools()]
    assert first == [key(p) for p in pools()]
    assert first != [key(p) for p in pools(epoch=1)]
    assert first != [key(p) for p in pools(kind_seed=4)]
    assert all(a != b for a, b in pairwise(first))
    assert all((len(p.ids), len(p.chance)) == (40, 7) for p in pools())
    assert all([key(p) for p in pools(start=start)] == first[start:] for start in range(6))


def test_the_first_pass_draws_by_popularity_with_the_weights_of_the_measures() -> None:
    counts = torch.tensor([1, 9, 0, 4, 2])
    share = measures(counts, [0.0, 1.0])
    sampler = PoolSampler(counts, share, pool_size=500, batch_size=3, seed=0)
    drawn = torch.zeros(5)
    for pool in sampler.epoch(0, 200):
        drawn += torch.bincount(pool.ids, minlength=5)
        assert torch.equal(pool.weights, weights(share, measure(counts, 1.0))[pool.ids])
    torch.testing.assert_close(drawn / drawn.sum(), counts / counts.sum(), rtol=0.05, atol=1e-9)


def test_a_pool_is_a_multiple_of_what_is_kept() -> None:
    sampler = entity_sampler(COUNTS, SHARE, kind="adaptive", batch_size=4, seed=0)
    (pool,) = sampler.epoch(0, 1)
    assert isinstance(pool, Pool)
    assert (len(pool.ids), len(pool.chance)) == (POOL_FACTOR * 4, 4)
