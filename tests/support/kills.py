"""Trainings in processes of their own that are killed, and what two lineages differ in."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evergram.training.checkpoints.checkpoint_folder import StateFile

# What a clock writes into a published version, and digests of files that hold it.
OF_THE_CLOCK = {"seconds", "created", "check", "metrics.json"}


def forked(work: Callable[[], None]) -> int:
    """Return the id of a new process that does some work and exits with 0, or with 1 by an error.

    A fork saves the two seconds that a new process imports torch for.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def command(arguments: list[str]) -> int:
    """Return the id of a new process that runs a command, whose output is thrown away."""
    nowhere = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_WRONLY, 0) for n in (1, 2)]
    return os.posix_spawn(arguments[0], arguments, os.environ, file_actions=nowhere)


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process has had; infinite if it has ended."""
    try:
        return time.clock_gettime((~process << 3) | 2)  # clock_getcpuclockid(3)
    except OSError:
        return float("inf")


def killed(process: int, after: float, ready: Callable[[], bool] = lambda: True) -> bool:
    """Kill a process by SIGKILL when it has had so many seconds of CPU since it was ready, which is
    the same moment however busy the machine is. Returns: False if it ended before, as it should."""
    begun: float | None = None
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0, "it failed"
            return False
        used = cpu_seconds(process)
        if begun is None and ready():
            begun = 0.0 if ready.__name__ == "<lambda>" else used
        if begun is not None and used >= begun + after:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return True
        time.sleep(0.002)


def finished(process: int) -> float:
    """Wait for a process that should end well. Returns: its CPU seconds."""
    _, status, usage = os.wait4(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "it failed"
    return usage.ru_utime + usage.ru_stime


def newest_checkpoint(work: Path) -> dict[str, Any]:
    """Return the name, the steps and the batches of the newest whole checkpoint; none is empty."""
    paths = sorted(work.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    if not paths:
        return {}
    facts = StateFile().read(paths[-1]).facts
    title = paths[-1].name.split(".")[0]
    return {"title": title, "steps": facts["steps"], "batches": facts["batches"]}


def published(folder: Path) -> dict[str, Any]:
    """Return every file of a lineage, by path: its bytes, and of JSON what no clock wrote."""
    files: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or name.startswith("."):  # .lock, and .work with its checkpoints
            continue
        content = path.read_bytes()
        files[name] = _timeless(json.loads(content)) if path.suffix == ".json" else content
    return files


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in OF_THE_CLOCK}
    return [_timeless(v) for v in value] if isinstance(value, list) else value
