"""Processes that are killed at a chosen file operation: no test waits for a moment, or misses one.

A process that is killed between two of its operations leaves what one leaves that stops there; what
it does between them, such as filling a file, it does to a file that is not in its place yet.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_ALONE = "EVERGRAM_TEST_ALONE"

# What Python says before it does it, and which of the arguments are paths.
OPERATIONS = {
    "open": 1,
    "os.chmod": 1,
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
}


def die_at(number: int, *folders: Path) -> None:
    """Let this process kill itself just before its `number`-th operation (1 is the first) on a file
    in one of the folders: opening, syncing, renaming and removing ones, and making folders."""
    left = number
    places = tuple(str(folder) for folder in folders)

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        paths = arguments[: OPERATIONS.get(event, 0)]
        # A name alone is in a folder that is being removed.
        alone = event in ("os.remove", "os.rmdir") and arguments[1] != -1
        if alone or any(_name(path).startswith(places) for path in paths):
            count()

    def sync(fd: Any) -> None:
        # Nothing is lost with a process but what it had not written; disks are slow to confirm.
        count()

    os.fsync = sync
    sys.addaudithook(look)


def in_a_fork(work: Callable[[int], object]) -> tuple[bytes, int]:
    """Return what `work` writes to the pipe that it is given, in a fork, and how the fork ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(reading)
            work(writing)
            code = 0
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(writing)
    answer = b""
    while more := os.read(reading, 4096):
        answer += more
    os.close(reading)
    return answer, os.waitpid(child, 0)[1]


def run_until(number: int, work: Callable[[int], object], *folders: Path) -> tuple[bool, bytes]:
    """Do some work in a fork of this process that dies at an operation, see `die_at`.

    Args:
        work: gets the descriptor of a pipe, to say in it what it has done.
    Returns: whether it was killed, which it is not where it has ended before; and what it wrote.
    Raises: RuntimeError: it failed by itself.
    """

    def die(writing: int) -> None:
        die_at(number, *folders)
        work(writing)

    answer, status = in_a_fork(die)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True, answer
    if status:
        raise RuntimeError(f"the work failed by itself, before operation {number}")
    return False, answer


def is_alone(request: pytest.FixtureRequest) -> bool:
    """Whether a test runs in a process of its own; if not, it has been run in one, and it passed.

    A fork has none of its parent's threads, but their locks as they were: a test that forks cannot
    do so after hundreds of others that have started threads.
    """
    if os.environ.get(_ALONE) == request.node.nodeid:
        return True
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", request.node.nodeid],
        env={**os.environ, _ALONE: request.node.nodeid, "OMP_NUM_THREADS": "1"},
        cwd=request.config.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr
    return False


def _name(path: object) -> str:
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
