"""The sampler of pools, and the choice between it and samplers of one pass."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from evergram.data.pools.pool import Pool
from evergram.data.sampling import EntitySampler, places
from evergram.errors import RecipeError

# P/B where the size of the pool is not chosen.
POOL_FACTOR = 8


class PoolSampler(EntitySampler):
    """Draws pools of one side's entities, with r ∝ count and replacement, for `Pool.resample`.

    Args:
        counts: int64 [N], interactions.
        measures: float64 [N, R].
        pool_size: P.
        batch_size: B, entities that a step keeps of a pool.
        seed: of both passes; they are a function of (seed, epoch) and of the scores.
    """

    def __init__(
        self, counts: Tensor, measures: Tensor, *, pool_size: int, batch_size: int, seed: int
    ) -> None:
        super().__init__(counts, measures, kind="linear", batch_size=batch_size, seed=seed)
        self.pool_size = pool_size

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.pool_size, self.batch_size

    def _draw(self, chances: Sequence[Tensor]) -> Pool:
        ids = places(self.bounds, chances[0])
        return Pool(ids, self.weights[ids], chances[1])


def entity_sampler(
    counts: Tensor,
    measures: Tensor,
    *,
    kind: str,
    batch_size: int,
    pool_size: int | None = None,
    seed: int,
) -> EntitySampler:
    """Return the sampler of one side's entities that a recipe names.

    Args:
        counts: int64 [N], interactions.
        measures: float64 [N, R].
        kind: "uniform", "sqrt", "linear" or "adaptive".
        batch_size: B, entities of a step.
        pool_size: P of "adaptive"; None is eight times B.
    Raises: RecipeError: the pool is smaller than what is kept of it.
    """
    if kind != "adaptive":
        return EntitySampler(counts, measures, kind=kind, batch_size=batch_size, seed=seed)
    pool = pool_size or POOL_FACTOR * batch_size
    if pool < batch_size:
        raise RecipeError(
            f"gramian.pool_size is {pool} and {batch_size} entities of a pool are kept a step; "
            f"make it {batch_size} or more, or set a smaller gramian.batch_size."
        )
    return PoolSampler(counts, measures, pool_size=pool, batch_size=batch_size, seed=seed)
