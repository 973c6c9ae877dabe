"""The command under torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Command
from tests.support.several_processes import (
    ROOT,
    SECONDS,
    assert_near,
    environment,
    free_port,
)

from evergram.cli.failures import error_line
from evergram.lineage.lineage import Lineage

RECIPE = """
name = "shared"
metrics = ["recall@20"]
[data]
kind = "synthetic"
queries = 120
candidates = 80
interactions = 3000
[split]
kind = "time"
versions = [0.6, 0.8]
[model]
dim = [6, 8]
[task]
penalty = 5.0
l2 = 0.1
[training]
epochs = 3
batch_size = 128
[upgrade]
alone = false
"""


def run(arguments: list[str], processes: int = 1) -> Any:
    """Return what `evergram ARGUMENTS --json` prints, run by torchrun for several processes."""
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    launcher += [f"--master-port={free_port()}", "-m", "evergram"]
    command = [sys.executable, *(launcher if processes > 1 else ["-m", "evergram"]), *arguments]
    outcome = subprocess.run(
        [*command, "--json"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.mark.long
def test_two_processes_publish_the_lineage_of_one(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    folders = [str(tmp_path / f"by{processes}") for processes in (1, 2)]
    for processes, folder in enumerate(folders, 1):
        for command in ("train", "upgrade"):
            run([command, str(recipe), "--lineage", folder], processes)
    assert_near(*map(Lineage.open, folders))


def test_commands_that_share_nothing_are_refused(
    evergram: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name, rest in (
        ("tune", "x --out t"),
        ("vectors import", "x --lineage l"),
        ("demo", ""),
        ("store backfill plan", "l"),
    ):
        assert f"evergram {name} runs in one process, but WORLD_SIZE is 2" in evergram.refused(
            f"{name} {rest}"
        )
    assert "WORLD_SIZE" not in evergram.refused("train x.toml --lineage l")
    assert evergram("--help").code == 0


def test_an_error_says_that_its_process_is_not_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert error_line("x is 1.") == "error: x is 1.\n"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert error_line("x is 1.") == "error in a process that is not the first: x is 1.\n"
