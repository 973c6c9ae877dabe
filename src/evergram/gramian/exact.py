"""The exact Gramian: for small corpora, and the oracle in tests."""

from __future__ import annotations

from torch import Tensor

from evergram.gramian.estimator import EntityBatch, GramianEstimator, Population, exact_moment


class ExactGramian(GramianEstimator):
    """One pass over every entity before each step: O(N D²), no staleness and no noise."""

    exact = True

    def begin(self, population: Population) -> None:
        self.matrix: Tensor = exact_moment(population).to(self.matrix)

    def update(self, rows: EntityBatch) -> None:
        """Do nothing: `begin` has seen every entity."""
