"""Entities that Gramian estimators learn from where these are drawn apart from the pairs."""

from __future__ import annotations

from torch import Tensor

from evergram.data.adaptive_sampling import POOL_FACTOR, PoolSampler
from evergram.data.corpus import Corpus
from evergram.data.sampling import EntitySampler, ExampleSampler
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError
from evergram.training.recipe import GramianRecipe


def build_entity_sampler(
    settings: GramianRecipe, counts: Tensor, measures: Tensor, *, batch_size: int, seed: int
) -> EntitySampler:
    """Return the sampler of one side's entities.

    Args:
        counts: int64 [N], interactions.
        measures: float64 [N, R].
        batch_size: entities of a step where `settings` have no `batch_size`.
    Raises: RecipeError: the pool is smaller than what is kept of it.
    """
    kept = settings.batch_size or batch_size
    if settings.sampler != "adaptive":
        return EntitySampler(counts, measures, kind=settings.sampler, batch_size=kept, seed=seed)
    pool = settings.pool_size or POOL_FACTOR * kept
    if pool < kept:
        raise RecipeError(
            f"gramian.pool_size is {pool} and {kept} entities of a pool are kept in each step; "
            f"make it {kept} or more, or set a smaller gramian.batch_size."
        )
    return PoolSampler(counts, measures, pool_size=pool, batch_size=kept, seed=seed)


def build_independent(
    settings: GramianRecipe, corpus: Corpus, sampler: ExampleSampler, seed: int
) -> dict[str, EntitySampler]:
    """Return, for each side, the sampler of the entities that estimators learn from.

    Raises: RecipeError: as `build_entity_sampler`.
    """
    return {
        side: build_entity_sampler(
            settings,
            corpus.counts(side),
            sampler.measures[side],
            batch_size=sampler.batch_size,
            seed=2 * seed + 1 + i,
        )
        for i, side in enumerate(SIDES)
    }
