"""Means and deviations of a comparison, by hand."""

from __future__ import annotations

import math

import pytest
from tests.support.comparison_results import MEASURED, results

from evergram.evaluation.reports.comparison import spread


def test_means_and_deviations_over_seeds() -> None:
    assert spread([1.0, 3.0]) == {"mean": 2.0, "deviation": math.sqrt(2), "each": [1.0, 3.0]}
    assert spread([1.0])["deviation"] is None
    keep, new = results(MEASURED)["table"]
    assert keep["total"]["each"] == [0, 0]
    # Seed 0: 0.15 beside 0.2; seed 1: 0.25 beside 0.25.
    assert new["intended"]["each"] == pytest.approx([-25, 0])
    # 0.6 beside 0.8, and 0.4 beside 0.8.
    assert new["unintended"]["each"] == pytest.approx([-25, -50])
    assert new["unintended"]["deviation"] == pytest.approx(25 / math.sqrt(2))
    assert new["total"]["each"] == pytest.approx([-50, -50])
    assert new["error"]["mean"] == pytest.approx(0.75)
    assert new["error_after_first"]["mean"] == pytest.approx(1.5)


def test_over_time_by_task_and_by_lambda() -> None:
    summary = results(MEASURED)
    assert summary["keep_all"]["intended"]["each"] == pytest.approx([0.2, 0.25])
    assert summary["keep_all"]["unintended"]["mean"] == pytest.approx(0.8)
    assert summary["over_time"]["new"]["intended"][1]["each"] == pytest.approx([-50, 0])
    assert list(summary["over_time"]["new"]["unintended"]) == [1]
    assert summary["by_task"]["new"]["activity"][1]["each"] == pytest.approx([-25, -50])
    assert [row["lambda"] for row in summary["by_lambda"]["new"]] == [1.0, 16.0]
    assert summary["by_lambda"]["new"][0]["unintended"]["each"] == pytest.approx([-50, -50])
    assert summary["by_lambda"]["new"][1]["error"]["mean"] == pytest.approx(0.75)
