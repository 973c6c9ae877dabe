"""What every estimator of a Gramian does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

# Every entity's embedding with its share of the measure, in blocks: ([b, D], [b]).
Population = Callable[[], Iterable[tuple[Tensor, Tensor]]]


class GramianEstimator(nn.Module, ABC):
    """An estimate Ĝ [D, D] of G = Σ_a p_a u_a ⊗ u_a, kept while the embeddings move.

    The order of a step is part of the contract: `begin`, then the gradient with `gramian()`, then
    the optimiser's step, then `update` with the embeddings of that same batch. The gradient at
    step t so uses batches before t only, and is independent of its own
    (../shared/method.md §1, "Which batch"). All state is in buffers.
    """

    def begin(self, population: Population) -> None:
        """Before a step; `population` iterates over every entity, for those who must look."""

    @abstractmethod
    def gramian(self) -> Tensor:
        """Ĝ [D, D], symmetric, detached, never modified in place once handed out."""

    @abstractmethod
    def update(self, embeddings: Tensor, weights: Tensor) -> None:
        """Fold in a batch: embeddings [B, D], and weights [B] with E[weighted u⊗u] = G."""


def batch_gramian(embeddings: Tensor, weights: Tensor) -> Tensor:
    """S_B = (1/B) Σ_a μ_a u_a ⊗ u_a, [D, D], of embeddings [B, D] and weights [B]."""
    with torch.no_grad():
        return (embeddings * weights[:, None]).T @ embeddings / len(embeddings)


def exact_gramian(population: Population) -> Tensor:
    """G = Σ_a p_a u_a ⊗ u_a, [D, D], summed in float64 over every entity."""
    total: Tensor | None = None
    with torch.no_grad():
        for embeddings, share in population():
            wide = embeddings.double()
            part = (wide * share.to(wide)[:, None]).T @ wide
            total = part if total is None else total + part
    if total is None:
        raise ValueError("The population is empty; a Gramian needs at least one entity.")
    return total
