"""The Gramian of the last batch, as a matrix or as the batch's rows."""

from __future__ import annotations

import pytest
import torch
from tests.support.gramian_population import (
    DIM,
    EMBEDDINGS,
    FACTORS,
    K,
    rows,
)

from evergram.gramian.estimator import EntityBatch
from evergram.gramian.sampled import SampledGramian


def test_a_batch_smaller_than_the_dim_is_kept_as_rows() -> None:
    for size, pairs in ((DIM - 1, True), (DIM, False)):
        estimator = SampledGramian(DIM, K)
        estimator.update(rows(torch.arange(size)))
        assert (estimator.moment().matrix is None) == pairs


@pytest.mark.parametrize("size", [3, 12])
def test_matrix_and_rows_give_the_same_products(size: int) -> None:
    forms = [SampledGramian(DIM, K, form) for form in ("gramian", "pairs")]
    for estimator in forms:
        estimator.update(rows(torch.arange(20)))
        estimator.update(rows(torch.arange(size)))  # only the last batch counts
    matrix, pairs = (estimator.moment() for estimator in forms)
    assert matrix.matrix is not None
    assert pairs.matrix is None
    torch.testing.assert_close(pairs.push(EMBEDDINGS), matrix.push(EMBEDDINGS))
    torch.testing.assert_close(pairs.pull(FACTORS), matrix.pull(FACTORS))
    torch.testing.assert_close(pairs.dense, matrix.dense)


def test_a_batch_after_a_small_one_replaces_it() -> None:
    """The last batch of an epoch is often small."""
    draw = torch.Generator().manual_seed(0)
    estimator = SampledGramian(4)
    for size in (8, 2, 8, 8, 3):
        embeddings = torch.randn(size, 4, generator=draw)
        rows = EntityBatch(torch.arange(size), torch.ones(size), embeddings, torch.zeros(size, 0))
        estimator.update(rows)
        expected = embeddings.T @ embeddings / size
        torch.testing.assert_close(estimator.gramian(), expected)
