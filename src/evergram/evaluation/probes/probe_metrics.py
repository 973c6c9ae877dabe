"""Measure the answers of a consumer's model against labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from evergram.errors import DataError
from evergram.evaluation.auc import roc_auc
from evergram.evaluation.probes.probe_models import Answers


def measure(metric: str, answers: Answers, label: pa.Array) -> float:
    """Return AUC or accuracy (higher is better), or root mean squared error (lower is better).

    Args:
        metric: "auc", "accuracy" or "rmse".
        answers: of the model, for N objects.
        label: [N]; two classes (0 and 1, or booleans) for auc, numbers for rmse.
    Raises: DataError: the labels or the answers are not of the kind that the metric needs.
    """
    if label.null_count or not len(label):
        raise DataError("A probe needs at least one object, and a label for each.")
    if metric == "accuracy":
        if answers.predicted is None:
            raise DataError(
                "The model gives neither classes nor a probability from 0 to 1, so that accuracy "
                "cannot be measured; export it with its classes."
            )
        return float(
            np.mean([a == b for a, b in zip(*_alike(answers.predicted, label), strict=True)])
        )
    if answers.score is None:
        raise DataError(f"The model tells more than two classes apart; {metric} needs one score.")
    try:
        numbers = label.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(f"The labels are {label.type}; {metric} needs numbers.") from None
    if metric == "rmse":
        return float(np.sqrt(np.square(answers.score - numbers).mean()))
    if not ((numbers == 0) | (numbers == 1)).all():
        raise DataError("The labels are not 0 and 1; auc needs two classes.")
    return roc_auc(answers.score, numbers == 1)


def _alike(predicted: pa.Array, label: pa.Array) -> tuple[list[Any], list[Any]]:
    """Return both as texts if one of them is text, else as numbers."""
    if pa.types.is_string(label.type) or pa.types.is_string(predicted.type):
        both = predicted.cast(pa.string()), label.cast(pa.string())
    else:
        both = predicted.cast(pa.float64()), label.cast(pa.float64())
    return both[0].to_pylist(), both[1].to_pylist()
