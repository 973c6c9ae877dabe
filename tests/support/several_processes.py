"""Start one command in several processes that can reach each other, as torchrun does."""

from __future__ import annotations

import inspect
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evergram.lineage.lineage import Lineage

ROOT = Path(__file__).parents[2]
SECONDS = 240


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
    return port


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with one thread, and short waits for other processes."""
    mine = {"OMP_NUM_THREADS": "1", "EVERGRAM_PROCESS_TIMEOUT": str(SECONDS)}
    return {**os.environ, **mine, **more}


def start(count: int, *arguments: str) -> list[subprocess.Popen[str]]:
    """Start `python ARGUMENTS` in so many processes; what they write is one pipe each."""
    port = str(free_port())
    beside = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment(RANK=str(rank), LOCAL_RANK=str(rank), **beside),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Return the exit code of each process and what it wrote; none is left running."""
    try:
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, out) for process, out in zip(processes, outputs, strict=True)]


def called(count: int, function: Callable[..., object], *texts: str) -> list[tuple[int, str]]:
    """Call a function of a test module with texts in so many processes; see `ended`."""
    path = Path(inspect.getfile(function)).relative_to(ROOT).with_suffix("")
    code = "import sys, importlib; getattr(importlib.import_module(sys.argv[1]), sys.argv[2])"
    words = ".".join(path.parts), function.__name__, *texts
    return ended(start(count, "-c", f"{code}(*sys.argv[3:])", *words))


def assert_near(alone: Lineage, together: Lineage) -> None:
    """Assert that two lineages of versions 0 and 1 have the same up to rounding."""
    for version in (0, 1):
        metrics = (each.metrics(version)["metrics"]["model"] for each in (alone, together))
        assert next(metrics) == pytest.approx(next(metrics), abs=1e-6)
        for side, (ids, vectors) in alone.canaries(version).items():
            others = together.canaries(version)[side]
            assert ids.equals(others[0])
            torch.testing.assert_close(others[1], vectors, rtol=1e-5, atol=1e-5)
    matrices = together.chain.matrix(1, 0), alone.chain.matrix(1, 0)
    torch.testing.assert_close(*matrices, rtol=1e-4, atol=1e-5)
