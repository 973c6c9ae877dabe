"""The area under the ROC curve of scores for two classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evergram.errors import DataError


def roc_auc(score: NDArray[np.floating], label: NDArray[np.bool_]) -> float:
    """Return the chance that a positive scores above a negative; a tie counts half.

    Args:
        score: [N].
        label: bool [N], True for positives.
    Raises: DataError: one of the classes is missing.
    """
    positives = int(label.sum())
    negatives = len(label) - positives
    if not positives or not negatives:
        raise DataError("An AUC needs positive and negative examples; one of them is missing.")
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    # Mean rank of each distinct score.
    rank = count.cumsum() - (count - 1) / 2
    total = rank[place][label].sum()
    return float((total - positives * (positives + 1) / 2) / (positives * negatives))
