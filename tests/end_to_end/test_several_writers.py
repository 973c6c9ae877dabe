"""Two commands that publish to one lineage at once: one is refused, and nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.support.click_shop import tree_of
from tests.support.command import PROGRAM, Command

from evergram.lineage.lineage import Lineage

PATIENCE = 120
# Epochs that no test waits for, and as few as can be.
LONG = ("--set", "training.epochs=1_000_000", "--set", "training.patience=0")


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start a command that trains until it is killed."""
    words = [sys.executable, "-c", PROGRAM, "--quiet", *arguments]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.02)


def ended(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)


@pytest.mark.long
@pytest.mark.parametrize("command", ["train", "upgrade"])
def test_the_second_of_two_trainings_is_refused(
    shop: Path, evergram: Command, command: str
) -> None:
    words = (command, "shop.toml", "--lineage", "l")
    if command == "upgrade":
        assert evergram("train", "shop.toml", "--lineage", "l").code == 0
    published = tree_of(shop / "l") if command == "upgrade" else {}
    first = started(*words, *LONG)
    try:
        wait_for(shop / "l/.work/training.lock", first)
        sentence = evergram.refused("--quiet", *words)
        assert "Another process is training the next version of l" in sentence
        assert first.poll() is None
    finally:
        ended(first)
    now = tree_of(shop / "l")
    assert {name: now[name] for name in published} == published
    # The lock of a killed process is free, and its training is not in the way of another.
    again = evergram(*words, "--resume", "never")
    assert again.code == 0, again.err
    versions = Lineage.open("l").versions
    assert [each.version for each in versions] == [0, 1][: 1 + (command == "upgrade")]


@pytest.mark.long
def test_of_two_imports_at_once_one_is_published_whole(shop: Path) -> None:
    """Whichever comes second meets the lock of the first, or its lineage."""
    files = np.random.default_rng(0).normal(size=(2, 2000, 8)).astype(np.float32)
    for name, values in zip("ab", files, strict=True):
        np.save(f"{name}.npy", values)
    runs = [started("vectors", "import", f"{name}.npy", "--lineage", "l") for name in "ab"]
    errors = [run.communicate(timeout=PATIENCE)[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2], errors
    loser = next(i for i, run in enumerate(runs) if run.returncode)
    assert errors[loser].count("\n") == 1
    said = ("Another process is publishing", "already holds a lineage", "has changed")
    assert any(words in errors[loser] for words in said)
    _, vectors = Lineage.open(shop / "l").embeddings("object")
    np.testing.assert_array_equal(vectors.numpy(), files[1 - loser])
