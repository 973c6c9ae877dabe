"""Start one command in several processes that can reach each other, as torchrun does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

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


def train_cases(module: str, cases: dict[int, list[str]], folder: Path) -> dict[int, Path]:
    """Run `python -m MODULE FOLDER CASES` in several processes, for each number of them.

    Returns: the folder of each number's results.
    """
    folders = {count: folder / f"of{count}" for count in cases}
    for count, out in folders.items():
        out.mkdir()
        for code, output in ended(start(count, "-m", module, str(out), *cases[count])):
            assert code == 0, output
    return folders
