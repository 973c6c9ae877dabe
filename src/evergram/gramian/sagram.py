"""SAGram: the Gramian of a cache of every entity's last seen embedding. [G2] Algorithm 1 and 3."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian.estimator import (
    EntityBatch,
    GramianEstimator,
    Population,
    batch_moment,
    beside,
    projected,
)

# Updates between two summations of the whole cache, which take off what rounding has added.
REFRESH = 10_000
BLOCK = 65_536


class SAGram(GramianEstimator):
    """S = Σ_a p_a û_a ⊗ (û_a, f_a) over a cache û of distinct entities, N × D floats of state.

    The order of a step is part of the algorithm:

    1. `update` with a batch B: Ĝ = S + β [S_B(θ) − S_B(cache)]. The cache stays as it is.
    2. The gradient, with Ĝ, of a batch B′ that is independent of B; then the optimiser's step.
    3. `after_step` with the embeddings of B′ at the *new* parameters: they go into the cache.

    With tables of ids and plain SGD only the rows of B′ move, so that S is exact after every step.
    With `beta` "1/n" Ĝ is the Gramian of a cache in which the entities of B are as they are now:
    PSD, and as stale as the cache. With "1" it is unbiased, and then projected onto the PSD
    matrices, which costs the unbiasedness. The cache starts from the embeddings at the first step.

    Args:
        dim: D.
        share: [N], the measure p.
        factors: [N, K], or None.
        beta: "1/n" (as SAG) or "1" (as SAGA).
    Source: [G2] Algorithm 1, lines 4 to 12; with factors Algorithm 3, where lines 11 and 12 print λ
        for β.
    """

    wants_after = True
    on_host: tuple[str, ...] = ("filled", "updates")

    def __init__(
        self, dim: int, share: Tensor, factors: Tensor | None = None, beta: str = "1/n"
    ) -> None:
        super().__init__(dim, 0 if factors is None else factors.shape[1])
        if beta not in ("1/n", "1"):
            raise ValueError(f"SAGram's β is {beta!r}; it must be '1/n' or '1'.")
        self.beta = beta
        self.total: Tensor
        self.share: Tensor
        self.factors: Tensor
        self.cache: Tensor
        self.filled: Tensor
        self.updates: Tensor
        table = torch.zeros(len(share), 0) if factors is None else factors
        # S, in the width in which small changes add up.
        self.register_buffer("total", torch.zeros(self.matrix.shape, dtype=torch.float64))
        self.register_buffer("share", share.double(), persistent=False)
        self.register_buffer("factors", table.float(), persistent=False)
        self.register_buffer("cache", torch.zeros(len(share), dim))
        self.register_buffer("filled", torch.zeros((), dtype=torch.bool))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def begin(self, population: Population) -> None:
        if bool(self.filled):
            return
        start = 0
        for embeddings, _, _ in population():
            self.cache[start : start + len(embeddings)] = embeddings.to(self.cache)
            start += len(embeddings)
        if start != len(self.share):
            raise ValueError(f"The population has {start} entities, the measure {len(self.share)}.")
        self.filled = torch.ones_like(self.filled)
        self._sum_anew()

    def update(self, rows: EntityBatch) -> None:
        if self.beta == "1":
            change = batch_moment(rows) - batch_moment(rows, self._cached(rows))
            self.matrix: Tensor = projected((self.total + change).to(self.matrix))
        else:
            _, _, change = self._changes(rows)
            self.matrix = (self.total + change).to(self.matrix)

    def after_step(self, rows: EntityBatch) -> None:
        ids, embeddings, change = self._changes(rows)
        self.total = self.total + change
        self.cache[ids.to(self.cache.device)] = embeddings.to(self.cache)
        self.updates = self.updates + 1
        if int(self.updates) % REFRESH == 0:
            self._sum_anew()
        else:
            self.matrix = self.total.to(self.matrix)

    def _cached(self, rows: EntityBatch) -> Tensor:
        return self.cache[rows.ids.to(self.cache.device)].to(rows.embeddings)

    def _changes(self, rows: EntityBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distinct ids of the whole batch, their embeddings, and how much these differ
        from the cache in S [D, D + K]: an entity that is in the batch twice has moved once."""
        rows = rows.whole()  # every process keeps the whole cache
        ids, place = torch.unique(rows.ids, return_inverse=True)
        # The last one of each: which of several writes to one place stays is not defined on CUDA.
        order = torch.arange(len(place), device=ids.device)
        one = torch.zeros_like(ids).scatter_reduce_(0, place, order, "amax")
        new, old, factors = rows.embeddings[one], self._cached(rows)[one], rows.factors[one]
        share = self.share[ids][:, None].to(new)
        change = (new * share).T @ beside(new, factors) - (old * share).T @ beside(old, factors)
        return ids, new, change

    def _sum_anew(self) -> None:
        total = torch.zeros_like(self.total)
        for start in range(0, len(self.cache), BLOCK):
            part = slice(start, start + BLOCK)
            old = self.cache[part].to(total)
            total += (old * self.share[part, None]).T @ beside(old, self.factors[part].to(total))
        self.total = total
        self.matrix = total.to(self.matrix)
