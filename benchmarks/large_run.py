"""A large corpus, from files to published vectors, with the command line: time and peak memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evergram.training.corpus_plan import CorpusPlan, CorpusSize, plan_for

PAIRS, QUERIES, CANDIDATES = 100_000_000, 606_000, 155_000
GROUPS = 200
BLOCK = 1_000_000
# Seconds between two readings of a process's memory.
LOOK = 0.02
RECIPE = """name = "large-run"
[data]
kind = "{kind}"
path = "{path}"
[split]
share = 0.005
[model]
dim = {dim}
[training]
epochs = 1
batch_size = {batch}
tables = "{tables}"
"""


@dataclass(frozen=True)
class Phase:
    """The time and memory of one command."""

    name: str
    seconds: float  # elapsed time
    cpu_seconds: float  # processor time of all threads
    anonymous: int  # peak bytes of anonymous memory, which the kernel cannot reclaim
    resident: int  # peak bytes including pages of mapped files, which it can


@dataclass(frozen=True)
class LargeRun:
    """The phases of a run over `pairs` interactions of entities that have at least one."""

    pairs: int
    queries: int
    candidates: int
    phases: list[Phase]


def write_pairs(path: Path, pairs: int, queries: int, candidates: int) -> None:
    """Write synthetic interactions in blocks, with ascending times.

    70 % of a query's interactions are in one of 200 groups of candidates; within a group, a few
    candidates are popular.
    """
    draw = np.random.default_rng(0)
    taste = draw.integers(0, GROUPS, queries)
    group_size = candidates // GROUPS
    schema = pa.schema([("query", pa.int64()), ("candidate", pa.int64()), ("time", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, pairs, BLOCK):
            size = min(BLOCK, pairs - start)
            query = draw.integers(0, queries, size)
            own = draw.random(size) < 0.7
            group = np.where(own, taste[query], draw.integers(0, GROUPS, size))
            place = (group_size * draw.random(size) ** 3).astype(np.int64)
            columns = [
                query,
                group * group_size + place,
                1_600_000_000 + np.arange(start, start + size),
            ]
            writer.write_table(pa.table(columns, schema=schema))


def measure(
    pairs: int = PAIRS,
    queries: int = QUERIES,
    candidates: int = CANDIDATES,
    *,
    dim: int = 32,
    batch: int = 8192,
    tables: str = "memory",
) -> LargeRun:
    """Prepare a corpus, train and evaluate a factorization for one epoch, and export it."""
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
    try:
        source, prepared, lineage = folder / "pairs.parquet", folder / "corpus", folder / "lineage"
        write_pairs(source, pairs, queries, candidates)
        recipe = folder / "recipe.toml"
        values = {"kind": "prepared", "path": prepared, "dim": dim, "batch": batch}
        recipe.write_text(RECIPE.format(**values, tables=tables))
        train = ("train", str(recipe), "--lineage", str(lineage))
        phases = [
            _run("prepare", ("prepare", str(source), str(prepared))),
            _run("train one epoch, evaluate, publish", train),
        ]
        for side in ("query", "candidate"):
            out = str(folder / f"{side}.parquet")
            phases.append(
                _run(f"export {side}", ("vectors", "export", str(lineage), out, "--side", side))
            )
        sides = json.loads((prepared / "prepared.json").read_text())["sides"]
        queries, candidates = (sides[side]["entities"] for side in ("query", "candidate"))
        return LargeRun(pairs, queries, candidates, phases)
    finally:
        shutil.rmtree(folder)


def tiny() -> LargeRun:
    return measure(20_000, 2_000, 1_000, dim=8, batch=1024)


def table(run: LargeRun) -> str:
    lines = [
        f"| {run.pairs:,} pairs, {run.queries:,} queries, {run.candidates:,} candidates "
        "| seconds | CPU seconds | peak MiB | with mapped files |",
        "|---|---|---|---|---|",
    ]
    whole = Phase(
        "all",
        sum(p.seconds for p in run.phases),
        sum(p.cpu_seconds for p in run.phases),
        max(p.anonymous for p in run.phases),
        max(p.resident for p in run.phases),
    )
    for p in (*run.phases, whole):
        peaks = f"{p.anonymous / 2**20:,.0f} | {p.resident / 2**20:,.0f}"
        lines.append(f"| {p.name} | {p.seconds:.1f} | {p.cpu_seconds:.1f} | {peaks} |")
    return "\n".join(lines)


def measure_entities(
    pairs: int = 1_200_000, few: int = 20_000, many: int = 4_000_000
) -> list[LargeRun]:
    """Measure runs with mapped tables over `few` and over up to `many` entities of each side."""
    options: dict[str, Any] = {"dim": 8, "batch": 65_536, "tables": "mapped"}
    return [measure(pairs, size, size, **options) for size in (few, many)]


def tiny_entities() -> list[LargeRun]:
    return measure_entities(20_000, 1_000, 2_000)


def entity_table(runs: list[LargeRun]) -> str:
    """Return what an entity adds to the memory, in bytes, that the kernel cannot reclaim."""
    few, many = (run.queries + run.candidates for run in runs)
    lines = [f"| {few:,} and {many:,} entities | bytes per entity |", "|---|---|"]
    for one, other in zip(*(run.phases for run in runs), strict=True):
        added = (other.anonymous - one.anonymous) / (many - few)
        lines.append(f"| {other.name} | {added:.0f} |")
    return "\n".join(lines)


def planned() -> CorpusPlan:
    """Plan 477 million pairs of 128 million ids."""
    size = CorpusSize(477_000_000, {"query": 69_000_000, "candidate": 59_000_000})
    return plan_for(size, Path("corpus"), 2 << 30)


def _run(name: str, arguments: Sequence[str]) -> Phase:
    """Run `evergram` in a subprocess and read its memory and times from the kernel."""
    code = "from evergram.cli import main; main()"
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments, "--json"], stdout=subprocess.DEVNULL
    )
    status = Path(f"/proc/{process.pid}/status")
    anonymous = resident = ended = 0
    while not ended:
        time.sleep(LOOK)
        lines = status.read_text() if status.exists() else ""
        anonymous = max(anonymous, _bytes_of("RssAnon", lines))
        resident = max(resident, _bytes_of("VmRSS", lines))
        ended, code_of_exit, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(code_of_exit)
    if process.returncode:
        raise RuntimeError(f"evergram {' '.join(arguments)} ended with {process.returncode}.")
    seconds = time.perf_counter() - started
    return Phase(name, seconds, usage.ru_utime + usage.ru_stime, anonymous, resident)


def _bytes_of(key: str, status: str) -> int:
    """Return an entry of /proc/PID/status in bytes; 0 if it is missing (the process has ended)."""
    lines = [line.split() for line in status.splitlines() if line.startswith(f"{key}:")]
    return int(lines[0][1]) * 1024 if lines else 0
