"""Tables whole in each process against tables divided by rows: memory, bytes exchanged, rates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks import ROOT
from evergram.data.corpus import Corpus
from evergram.process_settings import no_denormals
from evergram.training.build import prepare
from evergram.training.distributed import ProcessCollectives, join_processes
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")
WARM = 5  # steps before the clock starts
# How many processes have which tables.
RUNS = ((1, "memory"), (2, "memory"), (2, "sharded"), (3, "sharded"))


@dataclass(frozen=True)
class Size:
    """The corpus and the model that are trained.

    Args:
        steps: that are measured, after `WARM` others.
        batch: pairs of a step of all processes together.
    """

    queries: int = 1_000_000
    candidates: int = 200_000
    interactions: int = 1_500_000
    dim: int = 64
    steps: int = 20
    batch: int = 4096


@dataclass(frozen=True)
class Divided:
    """A training by some processes.

    Args:
        tables: "memory" or "sharded".
        rows: numbers of tables and of their optimiser that a process holds, at most, in bytes.
        memory: anonymous memory that a process gains from before the encoder is made to after the
            last step, at most, in bytes: the tables, and what grows with the corpus beside them.
        received: bytes that the first process receives a step for lookups and gradients of tables.
        rate: pairs a second of all processes together.
    """

    processes: int
    tables: str
    rows: int
    memory: int
    received: float
    rate: float


def measure(size: Size | None = None, runs: tuple[tuple[int, str], ...] = RUNS) -> list[Divided]:
    """Return what each process of a training holds, exchanges and trains, on this machine's cores.

    Each process has one thread.
    """
    size = Size() if size is None else size
    results = []
    for processes, tables in runs:
        with tempfile.TemporaryDirectory() as folder:
            reports = _run(processes, tables, size, Path(folder))
        first = reports[0]
        results.append(
            Divided(
                processes,
                tables,
                max(report["rows"] for report in reports),
                max(report["memory"] for report in reports),
                first["received"],
                first["rate"],
            )
        )
    return results


def tiny() -> list[Divided]:
    return measure(Size(3000, 2000, 6000, 8, 3, 64), ((1, "memory"), (2, "sharded")))


def table(results: list[Divided]) -> str:
    lines = [
        "| processes | tables | numbers of rows, MiB a process | memory gained, MiB a process | "
        "received a step for tables, bytes | pairs/s |",
        "|---" * 6 + "|",
    ]
    lines += [
        f"| {d.processes} | {d.tables} | {d.rows / 2**20:,.1f} | {d.memory / 2**20:,.1f} | "
        f"{d.received:,.0f} | {d.rate:,.0f} |"
        for d in results
    ]
    return "\n".join(lines)


def _run(processes: int, tables: str, size: Size, out: Path) -> list[dict[str, Any]]:
    """Train in so many processes and return the report of each."""
    settings = json.dumps({"tables": tables, **asdict(size)})
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    module = [f"--nproc-per-node={processes}", "-m", "benchmarks.sharded_tables"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*torchrun, *module, str(out), settings], cwd=ROOT, env=environment, check=True, timeout=900
    )
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(processes)]


def _recipe(tables: str, size: Size) -> Recipe:
    return Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": size.dim},
            "task": {"penalty": 5.0, "l2": 0.1},
            "training": {"batch_size": size.batch, "tables": tables},
        }
    )


def _corpus(size: Size) -> Corpus:
    """Return pairs of all queries and candidates, the later ones at random."""
    draw = np.random.default_rng(0)
    pairs = {}
    for name, count in (("query", size.queries), ("candidate", size.candidates)):
        ids = draw.integers(count, size=size.interactions)
        ids[:count] = np.arange(count)
        pairs[name] = ids
    return Corpus.from_tables(pa.table(pairs))


def _anonymous() -> int:
    """Return the bytes of this process's memory that the kernel cannot take back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Train as one of the processes, and write its report."""
    out, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    tables, size = settings.pop("tables"), Size(**settings)
    torch.set_num_threads(1)
    together = join_processes(CPU)
    recipe = _recipe(tables, size)
    corpus = _corpus(size)
    before = _anonymous()
    parts = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU, collectives=together)
    step, sampler, draws = parts
    step.collectives = together
    taken, began = 0, 0.0
    with no_denormals():
        for _ in run_epoch(step, sampler, draws, 0, CPU):
            taken += 1
            if taken == WARM:
                began = time.perf_counter()
                if isinstance(together, ProcessCollectives):
                    together.received.clear()
            if taken == WARM + size.steps:
                break
    seconds = time.perf_counter() - began
    received = together.received["tables"] if isinstance(together, ProcessCollectives) else 0
    numbers = list[torch.Tensor](step.encoder.parameters())
    numbers += [v for o in step.optimizers for state in o.state.values() for v in state.values()]
    report = {
        "rows": sum(t.numel() * t.element_size() for t in numbers),
        "memory": _anonymous() - before,
        "received": received / size.steps,
        "rate": size.steps * sampler.batch_size / seconds,
    }
    (out / f"{together.rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
