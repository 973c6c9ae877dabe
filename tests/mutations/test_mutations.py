"""The suite notices small faults: each is planted alone, and its tests must fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutations.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "evergram"


def test_every_fault_can_be_planted() -> None:
    misplaced = [
        (fault.file, fault.old)
        for fault in FAULTS
        if (SOURCE / fault.file).read_text().count(fault.old) != 1
    ]
    assert misplaced == []


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.file}:{f.new.strip()[:40]}")
def test_the_tests_notice(fault: Fault, tmp_path: Path) -> None:
    package = tmp_path / "evergram"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    file = package / fault.file
    file.write_text(file.read_text().replace(fault.old, fault.new))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"),
            *("-m", "not long", *(f"tests/{name}" for name in fault.tests.split())),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    # 1: tests ran and failed. A fault that keeps them from being collected is none of this list.
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-2000:]
