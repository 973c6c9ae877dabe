"""Rows of a map in SQL: every float32 reads back as it was."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evergram.retrieval.portable.affine_map import AffineMap
from evergram.retrieval.portable.sql_literals import comment, literal_rows

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(NUMBERS, min_size=3, max_size=3), NUMBERS)
def test_numbers_read_back_as_they_were(row: list[float], offset: float) -> None:
    weight = np.array([row], dtype=np.float32)
    way = AffineMap("name", "About.", weight, np.array([offset], dtype=np.float32))
    ((place, literal, shift),) = literal_rows(way)
    assert place == 1
    read = np.array([float(n) for n in literal.strip("[]").split(",")], dtype=np.float32)
    assert np.array_equal(read, weight[0])
    assert np.float32(shift) == np.float32(offset)


def test_the_comment_is_of_comments_alone() -> None:
    one = np.ones((1, 1), dtype=np.float32)
    way = AffineMap("name", "One. Two of\nit. Three.", one, one[0])
    assert comment(way).splitlines() == ["-- One.", "-- Two of it.", "-- Three."]
