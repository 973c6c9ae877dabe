"""SAGram for a loop without a list of all entities: the cache fills as entities are met."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian.estimator import EntityBatch, Moment
from evergram.gramian.sagram import SAGram


class GrowingSAGram(SAGram):
    """S = Σ w_a û_a ⊗ (û_a, f_a) / Σ w_a over the entities that have been seen.

    An entity that was never met is neither in the sum nor in the measure. It enters the cache as it
    is when it is met first, in either batch. A cache that begins empty grows with the ids it meets,
    each with share 1. The weights of a batch for `update` have the units of the shares.

    Args:
        dim: D.
        shares: [N], w, up to a factor; N = 0 for a cache that grows.
        factors: [N, K], or [1, K] where all entities have the same; None for K = 0.
        beta: "1/n" or "1".
    """

    def __init__(
        self, dim: int, shares: Tensor, factors: Tensor | None = None, beta: str = "1/n"
    ) -> None:
        same = factors if factors is not None and len(factors) == 1 else None
        table = factors if same is None else same.expand(len(shares), -1).clone()
        super().__init__(dim, shares, table, beta)
        self.one_factor: Tensor | None
        self.seen: Tensor
        self.seen_share: Tensor
        self.grows: bool = not len(shares)
        self.register_buffer("one_factor", same, persistent=False)
        self.register_buffer("seen", torch.zeros(len(shares), dtype=torch.bool))
        self.register_buffer("seen_share", torch.zeros((), dtype=torch.float64))
        self.filled.fill_(True)  # it starts without a population, as unseen entities do not count

    def moment(self) -> Moment:
        return Moment(self.matrix / self.seen_share.clamp(min=1e-30).to(self.matrix))

    def update(self, rows: EntityBatch) -> None:
        if self.grows:
            self._enlarge(int(rows.ids.max()) + 1)
        met = ~self.seen[rows.ids]
        if bool(met.any()):
            ids, weights = rows.ids[met], rows.weights[met]
            first = EntityBatch(ids, weights, rows.embeddings[met], rows.factors[met])
            self.after_step(first)
        super().update(rows)

    def after_step(self, rows: EntityBatch) -> None:
        if self.grows:
            self._enlarge(int(rows.ids.max()) + 1)
        fresh = torch.unique(rows.ids[~self.seen[rows.ids]])
        super().after_step(rows)
        self.seen_share = self.seen_share + self.share[fresh].sum()
        self.seen[fresh] = True

    def _enlarge(self, size: int) -> None:
        known = len(self.share)
        if size <= known:
            return
        room = max(size, known + known // 2) - known  # by half, so that growth stays cheap
        share = torch.cat([self.share, self.share.new_ones(room)])
        factors = None if self.one_factor is None else self.one_factor.expand(len(share), -1)
        self.grow(share, factors, self.cache.new_zeros(room, self.dim))
        self.seen = torch.cat([self.seen, self.seen.new_zeros(room)])

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *rest: object
    ) -> None:
        cache = state_dict.get(prefix + "cache")
        if cache is not None and self.grows:
            self._enlarge(len(cache))
            self.share, self.factors = self.share[: len(cache)], self.factors[: len(cache)]
            self.seen = self.seen.new_zeros(len(cache))
            self.cache = self.cache.new_zeros(len(cache), self.dim)
        super()._load_from_state_dict(state_dict, prefix, *rest)
