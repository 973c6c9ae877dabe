"""The Gramian itself: the oracle in tests, and right for small corpora."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian.estimator import GramianEstimator, Population, exact_gramian


class ExactGramian(GramianEstimator):
    """One pass over every entity before each step: O(N D²), no staleness and no noise."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.matrix: Tensor
        self.register_buffer("matrix", torch.zeros(dim, dim))

    def begin(self, population: Population) -> None:
        self.matrix = exact_gramian(population).to(self.matrix)

    def gramian(self) -> Tensor:
        return self.matrix

    def update(self, embeddings: Tensor, weights: Tensor) -> None:
        """Nothing to learn from a batch: `begin` sees everything."""
