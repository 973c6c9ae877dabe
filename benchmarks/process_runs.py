"""Start one module in several processes that share a training, as torchrun does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 900


def run_processes(count: int, module: str, *arguments: str) -> None:
    """Run `python -m MODULE ARGUMENTS` in so many processes, each with one thread, to their end.

    Raises: RuntimeError: one of them failed.
    """
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, **shared, "WORLD_SIZE": str(count), "RANK": str(rank)},
        )
        for rank in range(count)
    ]
    try:
        codes = [process.wait(SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    if any(codes):
        raise RuntimeError(f"a process of {count} ended with {codes}")
