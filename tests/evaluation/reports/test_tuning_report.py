"""The picture of a search has each key, is the same each time, and loads nothing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from evergram.evaluation.reports.tuning_report import write_tuning

TRIALS = [
    {"number": n, "values": {"a.rate": 10.0**-n, "a.kind": "xy"[n % 2]}, "state": s, "value": v}
    for n, (s, v) in enumerate([("finished", 0.1), ("pruned", 0.05), ("finished", 0.2)])
]
FAILED = {"number": 3, "values": {"a.rate": 1.0, "a.kind": "x"}, "state": "failed", "value": None}


def test_the_picture_is_the_same_each_time_and_loads_nothing(tmp_path: Path) -> None:
    one = write_tuning(tmp_path / "one.svg", TRIALS, "map@10").read_text()
    other = write_tuning(tmp_path / "other.svg", [*TRIALS[::-1], FAILED], "map@10").read_text()
    assert one == other
    ET.fromstring(one)
    assert all(f"<!-- {name} -->" in one for name in ("trial", "a.rate", "a.kind", "map@10"))
    links = re.findall(r'(?:href|src)="([^"]*)"', one)
    assert all(link.startswith("#") for link in links)
