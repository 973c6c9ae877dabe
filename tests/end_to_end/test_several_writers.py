"""Two commands that publish to one lineage at once: one is refused, and nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

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
        wait_for(shop / "l/.work/training.json", first)
        sentence = evergram.refused("--quiet", *words)
        assert "Another process is training the next version of l" in sentence
        assert f"process {first.pid}" in sentence
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
