"""The AUC against a count over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergram.errors import DataError
from evergram.evaluation.auc import roc_auc


def test_auc_counts_pairs_and_ties_are_half() -> None:
    score = np.array([0.1, 0.4, 0.4, 0.8])
    label = np.array([False, False, True, True])
    # Pairs won: (.4,.1) (.8,.1) (.8,.4), tied (.4,.4): 3.5 of 4.
    assert roc_auc(score, label) == pytest.approx(3.5 / 4)
    with pytest.raises(DataError, match="positive and negative"):
        roc_auc(score, np.ones(4, dtype=bool))


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_auc_equals_the_count_over_all_pairs(examples: list[tuple[int, bool]]) -> None:
    positive = [s for s, y in examples if y]
    negative = [s for s, y in examples if not y]
    if not positive or not negative:
        return
    won = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    scores = np.array([s for s, _ in examples], dtype=np.float32)
    labels = np.array([y for _, y in examples])
    assert roc_auc(scores, labels) == pytest.approx(won / len(positive) / len(negative))
