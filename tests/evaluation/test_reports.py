"""Reports hold the numbers that they were given, say what was not measured, and load nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from evergram.evaluation.html_page import (
    chart,
    write_demo,
)


def test_what_cannot_be_drawn_is_left_out_and_nothing_left_says_so() -> None:
    nan = float("nan")
    assert "Not measured" in chart("t", [1, 2], {"l": [None, nan]})
    assert chart("t", [1, 2, 3], {"l": [nan, 1.0, 0.5]}).count("<circle") == 2
    assert "&lt;t&gt;" in chart("<t>", [1], {"l": [1.0]})


def version(number: int, **metrics: float) -> dict[str, Any]:
    return {
        "version": number,
        "dim": 8 + number,
        "metrics": {who: {"recall@20": value} for who, value in metrics.items()},
        "consumer": {"auc_chain": 0.875, "auc_raw": 0.5},
        "drift_relative": 0.25 * number,
    }


def test_the_demos_report_is_one_file_with_every_number_that_loads_nothing(tmp_path: Path) -> None:
    versions = [version(0, model=0.125), version(1, model=0.25, alone=0.75, popularity=0.0625)]
    text = write_demo(tmp_path / "made" / "demo.html", versions, "recall@20").read_text()
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)[1:]]
    assert rows == [
        ["8", "0.1250", "–", "–", "0.8750", "0.5000", "0.0000"],
        ["9", "0.2500", "0.7500", "0.0625", "0.8750", "0.5000", "0.2500"],
    ]
    assert text.count('<svg viewBox="0 0 360') == 3
    assert not re.findall(r"<(?:script|link|img)", text)
