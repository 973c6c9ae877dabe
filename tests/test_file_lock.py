"""A file system without locks is named, at every door that takes one."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Command
from tests.support.lineages import lineage_of, publish

from evergram.errors import EvergramError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.lineage.locks.training_claim import training_claim
from evergram.stores.open_store import open_store
from evergram.training.tuning.trial_journal import claimed


def train(folder: Path) -> None:
    with training_claim(folder / "line" / ".work", "line"):
        pass


def tune(folder: Path) -> None:
    with claimed(folder / "trials"):
        pass


def pin(folder: Path) -> None:
    lineage = Lineage.open(folder / "line")
    ConsumerRegistry.open(folder / "line").add("ads", "v0", lineage.resolve)


DOORS: dict[str, Callable[[Path], Any]] = {
    "publish": lambda folder: publish(Lineage.open(folder / "line"), 1),
    "pin": pin,
    "train": train,
    "tune": tune,
    "snapshot": lambda folder: open_store(str(folder / "store"), create="int64"),
    "lance": lambda folder: open_store(f"lance:{folder}/lance#emb", create="int64"),
}


def without_locks(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.parametrize("door", DOORS)
def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    lineage_of(tmp_path / "line", versions=1)
    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(EvergramError, match="this file system has no locks"):
        DOORS[door](tmp_path)


def test_the_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "clicks.csv"
    table.write_text("query,candidate\n1,2\n2,3\n")
    monkeypatch.setattr(fcntl, "flock", without_locks)
    refusal = Command(capfd).refused("prepare", table, tmp_path / "out")
    assert "this file system has no locks" in refusal
