"""`python -m tests.support.leaving_sharded FOLDER`: train divided tables, keep them, leave; write
what threads are left."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tests.support.leaving_group import group_threads
from tests.support.sharded_training import DIVIDED
from tests.support.shared_training import CPU, prepared, shared_corpus

from evergram.training.distributed.process_group import _leave, join_processes
from evergram.training.sharding.sharded_factorization import ShardedFactorization


def main() -> None:
    processes = join_processes(torch.device("cpu"))
    # As at the end of a program that an error ends, what refers to the tables is still there.
    step, _ = next(prepared("sogram", shared_corpus(), processes, DIVIDED))
    assert isinstance(step.encoder, ShardedFactorization)
    processes.from_first(lambda: step.encoder.save(Path(sys.argv[1])))  # type: ignore[operator]
    assert group_threads()
    _leave()
    sys.stdout.write(f"left: {group_threads()}\n")
    assert step.encoder.device == CPU


if __name__ == "__main__":
    main()
