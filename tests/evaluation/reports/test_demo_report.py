"""The report of the demo: one HTML file with its numbers, and the figure beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from evergram.evaluation.reports.demo_report import write_report


def version(number: int, **metrics: float) -> dict[str, Any]:
    return {
        "version": number,
        "dim": 8 + number,
        "metrics": {who: {"recall@20": value} for who, value in metrics.items()},
        "consumer": {"auc_chain": 0.875, "auc_raw": 0.5},
        "drift_relative": 0.25 * number,
    }


def test_the_report_is_one_file_with_every_number_that_loads_nothing(tmp_path: Path) -> None:
    versions = [version(0, model=0.125), version(1, model=0.25, alone=0.75, popularity=0.0625)]
    path = write_report(tmp_path / "made" / "demo.html", versions, "recall@20")
    text = path.read_text()
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)[1:]]
    assert rows == [
        ["0", "8", "0.1250", "–", "–", "0.8750", "0.5000", "0.0000"],
        ["1", "9", "0.2500", "0.7500", "0.0625", "0.8750", "0.5000", "0.2500"],
    ]
    assert "<svg" in text
    assert not re.findall(r"<(?:script|link|img)", text)
    assert (tmp_path / "made" / "demo.png").read_bytes().startswith(b"\x89PNG")
