"""Where and by what a run was made: the machine, its load, and versions."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from reproduction.results import machine as processor

from benchmarks import ROOT

# Processes that want a core, a core: above it, times are of a machine that does something else.
BUSY = 0.25


def machine() -> dict[str, Any]:
    """Return processor, cores, memory in bytes, threads, and whether denormals are flushed."""
    return {
        **processor(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "flushes_denormals": float(torch.tensor([1e-310], dtype=torch.float64) * 0.5) == 0,
    }


def load() -> float:
    """Return how many processes wanted a core in the last minute, on average."""
    return round(os.getloadavg()[0], 2)


def is_busy(load: float, cores: int) -> bool:
    """Return whether a load, taken before a run starts, would disturb it."""
    return load > BUSY * cores


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages whose speed is measured."""
    numbers = {"python": platform.python_version()}
    for name in ("evergram", "torch", "numpy", "pyarrow"):
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            numbers[name] = "none"
    return numbers


@cache
def commit(root: Path = ROOT) -> str:
    """Return the commit of a checkout, with "+" if files that git knows differ from it; "" where
    there is no git."""
    try:
        named = _git(root, "rev-parse", "--short=10", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return named + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
