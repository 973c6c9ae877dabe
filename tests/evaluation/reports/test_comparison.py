"""Two seeds and two methods with numbers that are easy to sum."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from evergram.evaluation.reports.comparison import spread, summarise
from evergram.evaluation.reports.comparison_report import markdown, table_rows, write_comparison


def run(intended: float, auc: float, error: float) -> dict[str, Any]:
    """Two versions; two consumers a task, around `auc`."""
    return {
        "intended": {0: 0.2, 1: intended},
        "auc": {"activity": {1: [auc - 0.1, auc + 0.1]}, "pair-rating": {1: [auc, auc]}},
        "error": {0: 0.0, 1: error},
        "seconds": 2.0,
    }


FOUND = {
    0: {"keep-all": run(0.2, 0.8, 0.0), "new": run(0.1, 0.6, 1.0), "new-1": run(0.2, 0.4, 3.0)},
    1: {"keep-all": run(0.3, 0.8, 0.0), "new": run(0.3, 0.4, 2.0), "new-1": run(0.3, 0.4, 3.0)},
}


def results(found: dict[int, Any]) -> dict[str, Any]:
    return {
        "name": "planted",
        "protocol": "strict",
        "metric": "recall@50",
        "lambda": 16.0,
        "unit": "paper",
        "times": [0.5, 0.6],
        "seeds": list(found),
        "tasks": {"activity": {}, "pair-rating": {}},
        "left_out": ["Something is left out."],
        **summarise(found, ["keep-all", "new"], {"new": {1.0: "new-1", 16.0: "new"}}),
    }


def test_means_and_deviations_over_seeds() -> None:
    assert spread([1.0, 3.0]) == {"mean": 2.0, "deviation": math.sqrt(2), "each": [1.0, 3.0]}
    assert spread([1.0])["deviation"] is None
    keep, new = results(FOUND)["table"]
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
    found = results(FOUND)
    assert found["keep_all"]["intended"]["each"] == pytest.approx([0.2, 0.25])
    assert found["keep_all"]["unintended"]["mean"] == pytest.approx(0.8)
    assert found["over_time"]["new"]["intended"][1]["each"] == pytest.approx([-50, 0])
    assert list(found["over_time"]["new"]["unintended"]) == [1]
    assert found["by_task"]["new"]["activity"][1]["each"] == pytest.approx([-25, -50])
    assert [row["lambda"] for row in found["by_lambda"]["new"]] == [1.0, 16.0]
    assert found["by_lambda"]["new"][0]["unintended"]["each"] == pytest.approx([-50, -50])
    assert found["by_lambda"]["new"][1]["error"]["mean"] == pytest.approx(0.75)


def test_the_table_and_the_figures(tmp_path: Path) -> None:
    found = results(FOUND)
    assert table_rows(found)[1][:2] == ["new", "-12.50 ± 17.68"]
    text = markdown(found)
    assert "| new | -12.50 ± 17.68 | -37.50 ± 17.68 | -50.00 ± 0.00 | 0.750 ± 0.354 | 2.0 |" in text
    assert "Keep-All itself: recall@50 0.2250 ± 0.0354, ROC-AUC 0.8000 ± 0.0000." in text
    assert text.rstrip().endswith("Something is left out.")
    write_comparison(tmp_path, found)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"table.md", "over-time.png", "by-task.png", "by-lambda.png"}
    # One seed has no deviation, and a reference of 0 no percentage.
    one = {0: {name: {**r, "intended": {0: 0.0, 1: 0.0}} for name, r in FOUND[0].items()}}
    assert table_rows(results(one))[1][1:3] == ["–", "-25.00"]
