"""`python -m tests.support.leaving_group`: join, exchange, leave; write what threads are left."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch

from evergram.training.distributed.process_group import _leave, join_processes


def group_threads() -> list[str]:
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def main() -> None:
    processes = join_processes(torch.device("cpu"))
    # An optimiser imports it inside a training.
    importlib.import_module("torch._dynamo")
    processes.sum(torch.ones(3), "ones")
    assert group_threads()
    _leave()
    sys.stdout.write(f"left: {group_threads()}\n")


if __name__ == "__main__":
    main()
