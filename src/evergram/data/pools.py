"""The sampler of pools, and the choice between it and samplers of one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.data.sampling import Draw, EntitySampler, moved_to, places

# The share of draws that are uniform over the pool: no weight is multiplied by more than 1/MIX.
MIX = 0.1


def proposal(scores: Tensor) -> Tensor:
    """Return the probabilities q = (1 − ε) score / Σ score + ε / P, float64 [P].

    Args:
        scores: [P], ≥ 0; where all are 0, q is uniform.
    Source: docs/method.md, "Adaptive sampling".
    """
    wide = scores.double()
    # By the largest, so that no sum overflows; what is below all normal numbers counts as 0.
    least = torch.finfo(torch.float64).tiny
    largest = wide.max()
    shares = wide / largest.clamp(min=least)
    even = torch.full_like(wide, 1 / len(wide))
    uneven = (1 - MIX) * shares / shares.sum().clamp(min=least) + MIX * even
    return torch.where(largest >= least, uneven, even)


@dataclass(frozen=True)
class Pool(Draw):
    """A draw of P entities, of which a step keeps B by their scores.

    Args:
        ids, weights: int64 [P] and float32 [P, R] of the first pass, in itself a draw that stands
            for the measures.
        chance: float64 [B], uniform in [0, 1): it decides the second pass, once there are scores.
    """

    chance: Tensor

    def to(self, device: torch.device) -> Pool:
        return Pool(*(moved_to(v, device) for v in (self.ids, self.weights, self.chance)))

    def resample(self, scores: Tensor) -> Draw:
        """Return B entities of the pool, drawn with replacement by `proposal(scores)`.

        Weights are μ/(P q): (1/B) Σ μ f over the draw has (1/P) Σ μ f over the pool as its
        expectation, for any function f of an entity and any scores.

        Args:
            scores: [P], ≥ 0, made without knowledge of `chance`.
        """
        chances = proposal(scores)
        kept = places(torch.cumsum(chances, 0), self.chance)
        ratio = 1 / (len(self.ids) * chances[kept])
        weights = (self.weights[kept].double() * ratio[:, None]).to(self.weights)
        return Draw(self.ids[kept], weights)


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
    seed: int,
) -> EntitySampler:
    """Return the sampler of one side's entities that a recipe names.

    Args:
        counts: int64 [N], interactions.
        measures: float64 [N, R].
        kind: "uniform", "sqrt", "linear" or "adaptive".
        batch_size: B, entities of a step.
    """
    if kind != "adaptive":
        return EntitySampler(counts, measures, kind=kind, batch_size=batch_size, seed=seed)
    pool = POOL_FACTOR * batch_size
    return PoolSampler(counts, measures, pool_size=pool, batch_size=batch_size, seed=seed)
