"""AUC, accuracy and error of answers, and the labels that each of them needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from evergram.errors import DataError
from evergram.evaluation.probes.probe_metrics import measure
from evergram.evaluation.probes.probe_models import Answers

SCORE = np.array([0.1, 0.4, 0.4, 0.9])
BINARY = Answers(SCORE, pa.array([0, 0, 1, 1]))


@pytest.mark.parametrize("label", [[0, 1, 0, 1], [False, True, False, True], [0.0, 1.0, 0.0, 1.0]])
def test_classes_may_be_numbers_or_booleans(label: list[Any]) -> None:
    # Pairs won: (.4, .1), (.9, .1), (.9, .4), and tied (.4, .4): 3.5 of 4.
    assert measure("auc", BINARY, pa.array(label)) == 3.5 / 4
    assert measure("accuracy", BINARY, pa.array(label)) == 0.5


def test_classes_by_name_are_compared_as_texts() -> None:
    answers = Answers(None, pa.array([1, 2, 3]))
    assert measure("accuracy", answers, pa.array(["1", "b", "3"])) == pytest.approx(2 / 3)
    assert measure("accuracy", Answers(None, pa.array(["a"])), pa.array(["a"])) == 1


def test_the_error_of_values_is_the_root_of_the_mean_square() -> None:
    # (0.1 − 0.1)², (0.4 − 0)², (0.4 − 1)², (0.9 − 0.9)²
    error = measure("rmse", Answers(SCORE, None), pa.array([0.1, 0.0, 1.0, 0.9]))
    assert error == pytest.approx(((0.16 + 0.36) / 4) ** 0.5)


@pytest.mark.parametrize(
    ("metric", "answers", "label", "message"),
    [
        ("auc", BINARY, [], "at least one object"),
        ("auc", BINARY, [0, 1, None, 1], "a label for each"),
        ("auc", BINARY, [0, 1, 2, 1], "labels are not 0 and 1; auc needs two classes"),
        ("auc", BINARY, ["a", "b", "a", "b"], "labels are string; auc needs numbers"),
        ("auc", Answers(None, pa.array([0])), [1], "more than two classes apart; auc needs one"),
        ("accuracy", Answers(SCORE, None), [0, 1, 0, 1], "so that accuracy cannot be measured"),
    ],
)
def test_labels_and_answers_of_another_kind_are_refused(
    metric: str, answers: Answers, label: list[Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        measure(metric, answers, pa.array(label))
