"""How far canaries may move before an encoder is another."""

from __future__ import annotations

import numpy as np
import pytest

from evergram.texts.canaries import SAME, TEXTS, distance, letters


def test_the_distance_is_the_worst_canarys_relative_one() -> None:
    then = np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32)
    now = np.array([[3.0, 4.5], [0.0, 2.0]], dtype=np.float32)
    assert distance(now, then) == pytest.approx(0.1)
    assert distance(then, then) == 0


def test_other_dims_and_a_zero_that_is_none_are_far() -> None:
    assert distance(np.zeros((1, 2), np.float32), np.zeros((1, 3), np.float32)) == float("inf")
    then, now = np.zeros((1, 2), np.float32), np.full((1, 2), 1e-9, np.float32)
    assert distance(now, then) > SAME
    assert distance(then, then) == 0


def test_the_canaries_are_distinct_and_short_enough_for_any_encoder() -> None:
    assert len(set(TEXTS)) == len(TEXTS) == 8
    assert max(map(len, TEXTS)) < 200


def test_letters_are_counted() -> None:
    assert letters(["Abba"])[0, :3].tolist() == [2, 2, 0]
