"""What the documents say about GPUs is what the kept record says, or that there is none."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import ROOT, gpu_check


def test_the_documents_say_what_is_kept() -> None:
    text = (ROOT / "docs" / "training.md").read_text()
    assert f"<!-- gpu -->\n{gpu_check.kept()}\n<!-- end gpu -->" in text


def test_a_report_of_a_record() -> None:
    speed = {name: {"pairs_per_second": 1e6, "peak_bytes": 2**30} for name in gpu_check.TRAININGS}
    record = {
        "device": "A GPU",
        "versions": {"torch": "2.13.0"},
        "commit": "abc",
        "tests": {"passed": ["one", "two"], "failed": ["three"]},
        "bandwidth": 2e11,
        "trainings": speed,
    }
    text = gpu_check.report(record)
    assert "2 tests passed, failed: three" in text
    assert "| least squares | 1,000,000 | 1.0 GiB |" in text
    # 2 KiB a pair at a million pairs a second, of 200 GB a second.
    assert "take 1% of" in text


@pytest.mark.long
def test_it_runs_without_a_gpu() -> None:
    record = gpu_check.check(torch.device("cpu"), tiny=True)
    assert json.loads(json.dumps(record)) == record
    assert set(record["trainings"]) == set(gpu_check.TRAININGS)
    assert all(one["pairs_per_second"] > 0 for one in record["trainings"].values())
    assert record["bandwidth"] > 0
