"""SAGram: the Gramian of a cache of all entities' embeddings. [G2] Algorithms 1 and 3."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evergram.gramian.estimator import (
    EntityBatch,
    GramianEstimator,
    Population,
    batch_moment,
    beside,
    projected,
)

# Updates between two summations over the whole cache, which remove accumulated rounding.
REFRESH = 10_000
BLOCK = 65_536


class SAGram(GramianEstimator):
    """S = Σ_a p_a û_a ⊗ (û_a, f_a) over a cache û of all entities, N × D floats of state.

    The order of a step is part of the algorithm:

    1. `update` with a batch B: Ĝ = S + β [S_B(θ) − S_B(cache)]. The cache does not change.
    2. The gradient of a batch B′, independent of B, with Ĝ; then the optimizer's step.
    3. `after_step` with the embeddings of B′ at the *new* parameters writes them into the cache.

    With id tables and plain SGD only the rows of B′ change, so S is exact after every step. With
    `beta` "1/n", Ĝ is the Gramian of the cache with the current embeddings of B: PSD, but stale.
    With "1", it is unbiased, but the projection onto the PSD matrices then makes it biased. The
    cache is initialised with all embeddings at the first step.

    Args:
        share: [N], the measure p.
        factors: [N, K], or None.
        beta: "1/n" (as SAG) or "1" (as SAGA).
    Source: [G2] Algorithm 1, lines 4 to 12; with factors Algorithm 3, whose lines 11 and 12 print λ
        instead of β.
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
        table = torch.zeros(len(share), 0) if factors is None else factors
        # S, in float64 so that small changes add up.
        self.total: Tensor = nn.Buffer(torch.zeros(self.matrix.shape, dtype=torch.float64))
        self.share: Tensor = nn.Buffer(share.double(), persistent=False)
        self.factors: Tensor = nn.Buffer(table.float(), persistent=False)
        self.cache: Tensor = nn.Buffer(torch.zeros(len(share), dim))
        self.filled: Tensor = nn.Buffer(torch.zeros((), dtype=torch.bool))
        self.updates: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))

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
        self._sum_cache()

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
            self._sum_cache()
        else:
            self.matrix = self.total.to(self.matrix)

    def _cached(self, rows: EntityBatch) -> Tensor:
        return self.cache[rows.ids.to(self.cache.device)].to(rows.embeddings)

    def _changes(self, rows: EntityBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the whole batch's distinct ids, their embeddings, and the change of S [D, D + K]
        if these replace the cached ones."""
        rows = rows.whole()  # every process has the whole cache
        ids, inverse = torch.unique(rows.ids, return_inverse=True)
        # Take the last row of each id; index assignment with repeats is undefined on CUDA.
        order = torch.arange(len(inverse), device=ids.device)
        last = torch.zeros_like(ids).scatter_reduce_(0, inverse, order, "amax")
        new, old, factors = rows.embeddings[last], self._cached(rows)[last], rows.factors[last]
        share = self.share[ids][:, None].to(new)
        change = (new * share).T @ beside(new, factors) - (old * share).T @ beside(old, factors)
        return ids, new, change

    def _sum_cache(self) -> None:
        total = torch.zeros_like(self.total)
        for start in range(0, len(self.cache), BLOCK):
            block = slice(start, start + BLOCK)
            rows = self.cache[block].to(total)
            right = beside(rows, self.factors[block].to(total))
            total += (rows * self.share[block, None]).T @ right
        self.total = total
        self.matrix = total.to(self.matrix)
