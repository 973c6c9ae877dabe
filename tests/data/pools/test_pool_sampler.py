"""Pools by popularity, as a function of seed and epoch, and the sampler that a recipe names."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from evergram.data.pools.pool import Pool
from evergram.data.pools.pool_sampler import POOL_FACTOR, PoolSampler, entity_sampler
from evergram.data.sampling import EntitySampler, measure, measures, weights
from evergram.errors import RecipeError

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


@pytest.mark.parametrize(
    ("batch_size", "pool_size", "expected"),
    [(4, None, (POOL_FACTOR * 4, 4)), (3, None, (POOL_FACTOR * 3, 3)), (4, 4, (4, 4))],
)
def test_a_pool_is_as_large_as_chosen_or_a_multiple_of_what_is_kept(
    batch_size: int, pool_size: int | None, expected: tuple[int, int]
) -> None:
    sampler = entity_sampler(
        COUNTS, SHARE, kind="adaptive", batch_size=batch_size, pool_size=pool_size, seed=0
    )
    (pool,) = sampler.epoch(0, 1)
    assert isinstance(pool, Pool)
    assert (len(pool.ids), len(pool.chance)) == expected


@pytest.mark.parametrize("kind", ["uniform", "sqrt", "linear"])
def test_samplers_of_one_pass_draw_no_pools(kind: str) -> None:
    sampler = entity_sampler(COUNTS, SHARE, kind=kind, batch_size=4, seed=3)
    (draw,) = sampler.epoch(0, 1)
    (expected,) = EntitySampler(COUNTS, SHARE, kind=kind, batch_size=4, seed=3).epoch(0, 1)
    assert not isinstance(draw, Pool)
    assert torch.equal(draw.ids, expected.ids)


def test_a_pool_smaller_than_what_is_kept_of_it_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"gramian.pool_size is 3 and 4 entities .*make it 4 or"):
        entity_sampler(COUNTS, SHARE, kind="adaptive", batch_size=4, pool_size=3, seed=0)
