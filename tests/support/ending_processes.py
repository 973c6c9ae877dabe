"""`python -m tests.support.ending_processes FOLDER`: what several processes do until they end.

They train divided tables and keep them, choose pilots twice, first in no time, of which each writes
what it had, and leave; then each writes what threads are left.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.fits import CPU
from tests.support.sharded_training import DIVIDED
from tests.support.shared_training import prepared, shared_corpus

import evergram
from evergram.training.distributed.process_group import _leave, join_processes
from evergram.training.recipe import Recipe
from evergram.training.sharding.sharded_factorization import ShardedFactorization


def group_threads() -> list[str]:
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def choose_pilots(folder: Path, *, first: bool) -> None:
    """As `evergram train` with `--minutes 0` and then without; the first process alone has a limit
    and a folder, in which the first pilot is kept."""
    data = {"kind": "synthetic", "queries": 40, "candidates": 30, "interactions": 500}
    training = {"epochs": 2, "patience": 1}
    recipe = Recipe.of({"data": data, "model": {"dim": 4}, "training": training})
    own: dict[str, Any] = {"folder": folder} if first else {}
    limits: list[dict[str, Any]] = [{"minutes": 0} if first else {}, {}]
    for limit in limits:
        artefact = evergram.train(recipe, progress=False, **own, **limit)
        found = artefact.metrics["training"]
        sys.stdout.write(f"{json.dumps([found['ended'], found['pilots']])}\n")


def main() -> None:
    folder = Path(sys.argv[1])
    processes = join_processes(CPU)
    # As at the end of a program that an error ends, what refers to the tables is still there.
    step, _ = next(prepared("sogram", shared_corpus(), processes, DIVIDED))
    encoder = step.encoder
    assert isinstance(encoder, ShardedFactorization)
    processes.from_first(lambda: encoder.save(folder / "rows"))
    choose_pilots(folder / "pilots", first=processes.is_first)
    assert group_threads()
    _leave()
    sys.stdout.write(f"left: {group_threads()}\n")
    assert encoder.device == CPU


if __name__ == "__main__":
    main()
