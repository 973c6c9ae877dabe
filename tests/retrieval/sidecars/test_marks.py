"""Vectors are known again when they are rounded, and others are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.retrieval.sidecars.marks import MARKS, TOLERANCE, marks_of, same_marks


def draws(seed: int, rows: int, dim: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 400), st.floats(1e-3, 1e3))
def test_a_vector_is_known_in_float16_and_at_length_one_again(
    seed: int, dim: int, scale: float
) -> None:
    vectors = draws(seed, 50, dim)
    vectors *= scale / np.abs(vectors).max()
    marks = marks_of(vectors)
    assert marks.shape == (50, MARKS)
    assert same_marks(vectors, marks).all()
    if scale > 0.1:  # below, float16 has few digits
        assert same_marks(vectors.astype(np.float16).astype(np.float32), marks).all()
    again = vectors * (1 + 1e-6)
    assert same_marks(again.astype(np.float32), marks).all()


@pytest.mark.parametrize("distance", [0.1, 0.3, 1.4])
def test_another_vector_is_known_as_seldom_as_stated(distance: float) -> None:
    vectors = draws(0, 200_000, 16)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    steps = draws(1, 200_000, 16)
    steps *= distance / np.linalg.norm(steps, axis=1, keepdims=True)
    known = same_marks(vectors + steps, marks_of(vectors)).sum()
    expected = 200_000 * (0.8 * TOLERANCE / distance) ** MARKS
    assert known <= expected + 5 * expected**0.5 + 3


def test_zeros_are_zeros_alone() -> None:
    zeros = np.zeros((3, 5), np.float32)
    assert same_marks(zeros, marks_of(zeros)).all()
    assert not same_marks(zeros, marks_of(draws(0, 3, 5))).any()
    assert not same_marks(draws(0, 3, 5), marks_of(zeros)).any()


def test_marks_are_the_same_numbers_in_every_release() -> None:
    # A file is read for years: these are the signs of four dims.
    first = [[-1, -1, 1], [1, 1, -1], [1, -1, -1], [1, -1, -1]]
    assert marks_of(np.eye(4, dtype=np.float32)).tolist() == first
