"""Vectors cut to their first coordinates, with length 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evergram.errors import DataError
from evergram.texts.matryoshka import checked_dims, cut

NUMBERS = st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False)


@given(arrays(np.float32, (3, 5), elements=NUMBERS), st.integers(1, 5))
def test_a_cut_row_has_length_1_and_the_direction_of_its_coordinates(
    vectors: np.ndarray, dims: int
) -> None:
    rows = cut(vectors, dims)
    assert rows.shape == (3, dims)
    assert rows.dtype == np.float32
    for whole, row in zip(vectors.tolist(), rows.tolist(), strict=True):
        # In Python's own numbers, with hypot in place of a norm.
        length = math.hypot(*whole[:dims])
        if length == 0:
            assert row == [0.0] * dims
        else:
            np.testing.assert_allclose(row, [x / length for x in whole[:dims]], atol=1e-6)


def test_no_cut_is_no_change() -> None:
    vectors = np.array([[3.0, 4.0]], dtype=np.float32)
    assert cut(vectors, None) is vectors


def test_only_declared_numbers_and_all_are_allowed() -> None:
    assert checked_dims(None, 8, (2, 4), 1) is None
    assert checked_dims(8, 8, (2, 4), 1) is None
    assert checked_dims(4, 8, (2, 4), 1) == 4
    for asked in (0, 3, 9, -1):
        with pytest.raises(DataError, match=rf"8 dimensions and is not cut to {asked}: .* 2, 4;"):
            checked_dims(asked, 8, (4, 2), 1)
    with pytest.raises(DataError, match="declares no other number"):
        checked_dims(4, 8, (), 1)
