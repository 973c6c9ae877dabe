"""A run says where it was made: the commit with what was changed, and how busy the machine was."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch

from benchmarks.instrument import machine


def git(folder: Path, *arguments: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *name, *arguments], check=True, capture_output=True)


def test_a_changed_checkout_is_told_from_its_commit(tmp_path: Path) -> None:
    assert machine.commit(tmp_path) == ""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "file").write_text("one")
    git(folder, "add", "file")
    git(folder, "commit", "-q", "-m", "one")
    machine.commit.cache_clear()
    clean = machine.commit(folder)
    assert len(clean) >= 10
    (folder / "file").write_text("two")
    machine.commit.cache_clear()
    assert machine.commit(folder) == clean + "+"


def test_the_machine_has_memory_cores_and_its_denormal_setting() -> None:
    try:
        for setting in (True, False):
            torch.set_flush_denormal(setting)
            described = machine.machine()
            assert described["flushes_denormals"] is setting
    finally:
        torch.set_flush_denormal(False)
    assert described["memory"] > 2**28
    assert described["cores"] >= 1
    assert {"processor", "threads", "system"} <= described.keys()
    assert machine.versions()["torch"].startswith(torch.__version__.split("+")[0])


def test_a_load_of_more_than_a_quarter_of_the_cores_is_busy() -> None:
    assert not machine.is_busy(0.5, 2)
    assert machine.is_busy(0.51, 2)
