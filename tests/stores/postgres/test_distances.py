"""Scores of distances; the distances themselves are compared with a loop by the searches' tests."""

from __future__ import annotations

import numpy as np

from evergram.stores.postgres.distances import distance_of, scores_of


def test_scores_of_distances() -> None:
    distances = np.array([-2.0, 0.5])
    assert scores_of("ip", distances).tolist() == [2.0, -0.5]
    assert scores_of("cosine", distances).tolist() == [3.0, 0.5]
    assert scores_of("l2", distances).tolist() == [-4.0, -0.25]


def test_a_columns_name_is_quoted() -> None:
    text = distance_of("l2", 'e"; drop table x; --', 3).as_string(None)
    assert text.startswith('("e""; drop table x; --"::vector(3) <-> ')
