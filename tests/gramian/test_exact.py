"""The exact Gramian forgets the past and ignores batches."""

from __future__ import annotations

import torch
from tests.support.gramian_population import (
    DIM,
    K,
    naive_moment,
    population,
    rows,
)

from evergram.gramian.exact import ExactGramian


def test_each_step_is_the_population_of_that_step_alone() -> None:
    estimator = ExactGramian(DIM, K)
    for scale in (5.0, 1.0):
        estimator.begin(population(scale))
        estimator.update(rows(torch.arange(3), 9.0))
    torch.testing.assert_close(estimator.moment().dense, naive_moment())
