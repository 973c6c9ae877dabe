"""`evergram compare` as a person runs it, and as a power cut stops it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from evergram.cli import main

RECIPE = """
name = "tiny"
[data]
kind = "synthetic"
queries = 300
candidates = 200
interactions = 8000
[split]
kind = "time"
versions = [0.6, 0.7]
[model]
dim = [8, 12]
[training]
epochs = 3
batch_size = 256
metric = "recall@50"
[compare]
methods = ["keep-all", "non-bc", "bc-aligner"]
hidden = [16]
dropout = [0.0]
consumers = 2
epochs = 5
minimum_ratings = 5
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return path


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["evergram", "compare", *map(str, arguments)])
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def numbers(results: dict[str, Any]) -> dict[str, Any]:
    """All but times."""
    for row in results["table"]:
        del row["seconds"]
    for runs in results["runs"].values():
        for found in runs.values():
            del found["seconds"]
    return results


def test_a_table_and_one_json_object(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, recipe, "--out", tmp_path / "out")
    assert code == 0
    for text in (
        "bc-aligner",
        "Keep-All itself: recall@50 0.",
        "activity is left out",
        "all numbers",
    ):
        assert text in out
    assert "seed 0, bc-aligner, version 1: epoch 3" in err
    code, out, _ = run(capfd, recipe, "--out", tmp_path / "out", "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "out" / "results.json").read_text())
    code, out, err = run(capfd, recipe, "--out", tmp_path / "out", "--set", "training.epochs=2")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "training.epochs changed" in err
    assert "--fresh" in err


@pytest.mark.long
def test_killed_and_started_again_it_finds_the_same(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "killed"
    command = [sys.executable, "-c", "from evergram.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "compare", str(recipe), "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    there = out / "seed-0" / "non-bc" / "lineage.json"
    limit = time.monotonic() + 60
    while not there.exists() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert there.exists()
    assert not (out / "results.json").exists()
    code, text, _ = run(capfd, recipe, "--out", out, "--json")
    assert code == 0
    _, whole, _ = run(capfd, recipe, "--out", tmp_path / "whole", "--json")
    assert numbers(json.loads(text)) == numbers(json.loads(whole))
