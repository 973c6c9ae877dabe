"""`make gpu-check`: test and time training on a machine with CUDA, in at most eight minutes.

It needs the package and pytest, writes benchmarks/kept/gpu-check.json, and updates the text about
GPUs in docs/training.md. `--device cpu --tiny` tests in seconds that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from benchmarks import ROOT
from benchmarks.__main__ import put
from benchmarks.records import new_record
from evergram.atomic_files import write_text
from evergram.training.build import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.recipe import Recipe

KEPT = ROOT / "benchmarks" / "kept" / "gpu-check.json"
# Tests of equality with the CPU, determinism, resumption, upgrades and asynchronous steps.
TESTS = (
    "tests/training/test_cuda.py",
    "tests/training/test_step.py",
    "tests/gramian/gramian_penalty/test_gramian_penalty.py",
)
DIM = 64
UNIT = ["model.normalize=true", "training.optimizer=adam", "training.table_rate=0.02"]
SOFTMAX = [*UNIT, "task.kind=softmax_all", "task.temperature=0.2", "task.penalty=0"]
TRAININGS = {
    "factorization, SOGram": [],
    "two towers, hidden 512, 512": ["model.kind=two_tower", "model.hidden=[512, 512]"],
    "least squares": ["training.optimizer=als"],
    "softmax over all candidates": SOFTMAX,
    "softmax over all candidates, bfloat16": [*SOFTMAX, "training.precision=bfloat16"],
}
# Minimum bytes read and written per pair of a factorization: a row and its accumulator, per side.
BYTES_OF_A_PAIR = 2 * 2 * 2 * 4 * DIM


def check(device: torch.device, *, tiny: bool) -> dict[str, Any]:
    """Run all tests and trainings, and return the record."""
    started = time.perf_counter()
    record = new_record()
    record["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    record["tests"] = {} if device.type == "cpu" else run_tests()
    record["bandwidth"] = bandwidth(device, 2**20 if tiny else 2**30)
    record["trainings"] = {
        name: trained(settings, device, tiny=tiny) for name, settings in TRAININGS.items()
    }
    record["seconds"] = round(time.perf_counter() - started, 1)
    return record


def run_tests() -> dict[str, list[str]]:
    """Run the tests that need CUDA, and return their names by outcome."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        chosen = ["-q", "-k", "cuda or gpu", f"--junitxml={report}", *TESTS]
        subprocess.run(
            [sys.executable, "-m", "pytest", *chosen],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stdout=sys.stderr,
            check=False,
        )
        cases = list(ElementTree.parse(report).iter("testcase"))
    outcomes: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for case in cases:
        found = {child.tag for child in case}
        bad = "failed" if found & {"failure", "error"} else None
        outcome = bad or ("skipped" if "skipped" in found else "passed")
        outcomes[outcome].append(str(case.get("name")))
    return outcomes


def bandwidth(device: torch.device, size: int) -> float:
    """Return the memory bandwidth of a copy on the device, read plus write, in bytes per second."""
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        _wait(device)
        started = time.perf_counter()
        target.copy_(source)
        _wait(device)
        times.append(time.perf_counter() - started)
    return 2 * size / min(times)


def trained(settings: Sequence[str], device: torch.device, *, tiny: bool) -> dict[str, Any]:
    """Return the speed of the second and third epoch, in pairs per second, and the peak memory."""
    queries, candidates, pairs = (100, 60, 2_000) if tiny else (200_000, 100_000, 4_000_000)
    base = {
        "data": {
            "kind": "synthetic",
            "queries": queries,
            "candidates": candidates,
            "interactions": pairs,
        },
        "split": {"kind": "random"},
        "model": {"dim": DIM},
        "training": {"epochs": 3, "patience": 0, "batch_size": 128 if tiny else 16_384},
    }
    recipe = Recipe.of(base, settings)
    split = split_for(recipe, load_corpus(recipe), 0)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    history = fit_encoder(recipe, split, 0, RunContext(device)).history
    seconds = history[-1]["seconds"] - history[0]["seconds"]
    passes = history[-1]["epoch"] - history[0]["epoch"]
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"pairs_per_second": passes * len(split.training) / seconds, "peak_bytes": peak}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def report(record: Mapping[str, Any] | None) -> str:
    """Return the text about GPUs for the documents; record is None if nothing was measured."""
    if record is None:
        return "No measurement on a GPU is kept; `make gpu-check` makes one."
    tests, trainings = record["tests"], record["trainings"]
    rows = [
        "| 64 dims, 4 million pairs | pairs a second | peak memory |",
        "|---|---|---|",
        *(
            f"| {name} | {one['pairs_per_second']:,.0f} | {one['peak_bytes'] / 2**30:.1f} GiB |"
            for name, one in trainings.items()
        ),
    ]
    share = (
        trainings["factorization, SOGram"]["pairs_per_second"]
        * BYTES_OF_A_PAIR
        / record["bandwidth"]
    )
    failed = f", failed: {', '.join(tests['failed'])}" if tests["failed"] else ""
    return "\n".join(
        [
            f"On one {record['device']} (torch {record['versions']['torch']}, commit "
            f"{record['commit']}) {len(tests['passed'])} tests passed{failed}: models of the CPU "
            "up to rounding, and the same bits for a seed each time. Several GPUs were not tested.",
            "",
            *rows,
            "",
            f"The factorization's rows take {share:.0%} of the memory's bandwidth.",
        ]
    )


def kept() -> str:
    """Return the report of the saved record."""
    return report(json.loads(KEPT.read_text()) if KEPT.exists() else None)


def main() -> int:
    """Check, write the record, and return the exit code: 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="use 2,000 synthetic pairs")
    parser.add_argument("--out", type=Path, default=KEPT, help="JSON file to write")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("error: this machine has no CUDA device", file=sys.stderr)
        return 2
    record = check(torch.device(chosen.device), tiny=chosen.tiny)
    write_text(chosen.out, json.dumps(record, ensure_ascii=False, indent=1))
    if chosen.out == KEPT:
        put("gpu", kept())
    print(json.dumps(record["trainings"], indent=1))
    return 1 if record["tests"].get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
