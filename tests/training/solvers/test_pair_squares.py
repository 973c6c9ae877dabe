"""The squared objective's value by Gramians is its sum over all pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.small_squares import over_all_pairs, small_squares, small_tables

from evergram.errors import ShapeError


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("prior", [0, 2])
def test_value_is_the_sum_over_all_pairs(sparse: bool, prior: int) -> None:
    squares = small_squares(3, sparse=sparse, prior=prior)
    tables = small_tables(squares, 4, seed=5)
    torch.testing.assert_close(
        squares.value(tables), over_all_pairs(squares, tables), rtol=1e-12, atol=1e-14
    )


def test_refuses_lengths_that_differ() -> None:
    squares = small_squares(3)
    with pytest.raises(ShapeError, match="one of each a pair"):
        replace(squares, target=squares.target[:-1])
    with pytest.raises(ShapeError, match="a column a penalty"):
        replace(squares, penalty=(0.1,))
