"""`evergram prepare` beside DuckDB's own copy of the same files: rows a second, and memory.

Interactions are generated in random order of time, so that they must be sorted; both read the same
Parquet file, with the same threads and the same limit of memory, each in a process of its own. The
copy only reads and writes (`COPY … TO … (FORMAT parquet)`, in the source's order). From Python:
`python -m benchmarks.preparing 1e8` measures another number of interactions.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SIZES = (1_000_000, 10_000_000)
MEMORY, THREADS = 2 << 30, 2
QUERIES, CANDIDATES = 600_000, 150_000
KINDS = ("prepare", "copy")


@dataclass(frozen=True)
class Run:
    """One run in a process of its own.

    Args:
        seconds: without the start of the process.
        resident: bytes, the most at once of all kinds, with files that are mapped.
        anonymous: bytes, the most at once that no file backs, looked at every 20 ms.
        written: bytes of the result.
    """

    seconds: float
    resident: int
    anonymous: int
    written: int


def measure(sizes: Sequence[int] = SIZES) -> dict[int, dict[str, Run]]:
    """Return by number of interactions the runs of prepare and of the copy."""
    runs: dict[int, dict[str, Run]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "interactions.parquet"
            write_interactions(source, size)
            runs[size] = {kind: _in_a_process(kind, source, Path(folder)) for kind in KINDS}
    return runs


def tiny() -> dict[int, dict[str, Run]]:
    return measure((10_000, 20_000))


def table(runs: dict[int, dict[str, Run]]) -> str:
    """Return a row for each number of interactions."""
    lines = [
        "| interactions | prepare, seconds | rows/s | DuckDB's copy, rows/s | prepare over the "
        "copy | prepare, peak resident | of it anonymous | DuckDB's copy, peak resident |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size, kinds in runs.items():
        prepared, copied = kinds["prepare"], kinds["copy"]
        cells = [
            f"{size:,}",
            f"{prepared.seconds:.1f}",
            f"{size / prepared.seconds:,.0f}",
            f"{size / copied.seconds:,.0f}",
            f"{copied.seconds / prepared.seconds:.2f}",
            *(f"{n / (1 << 20):,.0f} MiB" for n in (prepared.resident, prepared.anonymous)),
            f"{copied.resident / (1 << 20):,.0f} MiB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_interactions(path: Path, size: int, block: int = 1_000_000) -> None:
    """Write generated interactions: popular ids at both ends, and times in no order."""
    rng = np.random.default_rng(0)
    writer: Any = None
    for start in range(0, size, block):
        rows = min(block, size - start)
        columns = pa.table(
            {
                # Ids are spread, as those of a shop are.
                "query": 11 + 7 * (QUERIES * rng.random(rows) ** 2).astype(np.int64),
                "candidate": 5 + 13 * (CANDIDATES * rng.random(rows) ** 3).astype(np.int64),
                "value": rng.integers(1, 6, rows).astype(np.float32),
                "time": rng.integers(1_600_000_000, 1_700_000_000, rows),
            }
        )
        writer = writer or pq.ParquetWriter(path, columns.schema)
        writer.write_table(columns)
    writer.close()


def _in_a_process(kind: str, source: Path, folder: Path) -> Run:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.preparing", kind, str(source), str(folder / kind)],
        cwd=Path(__file__).parents[1],
        check=True,
        capture_output=True,
        text=True,
    )
    return Run(**json.loads(done.stdout))


def run(kind: str, source: Path, out: Path) -> Run:
    """Run one of `KINDS` in this process."""
    if kind == "copy":
        import duckdb

        statement = f"COPY (FROM read_parquet('{source}')) TO '{out}' (FORMAT parquet)"
        connection = duckdb.connect(
            config={"memory_limit": f"{MEMORY >> 10}KiB", "threads": THREADS}
        )
        seconds, anonymous = watched(lambda: connection.execute(statement))
        return Run(seconds, bytes_of("VmHWM"), anonymous, out.stat().st_size)
    from evergram.data.prepared.prepare import PrepareSettings, prepare

    settings = PrepareSettings(memory=MEMORY, threads=THREADS)
    seconds, anonymous = watched(lambda: prepare(source, out, settings))
    written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return Run(seconds, bytes_of("VmHWM"), anonymous, written)


def watched(work: Callable[[], object]) -> tuple[float, int]:
    """Return the seconds of a call, and the most anonymous bytes meanwhile (0 if not on Linux)."""
    most, done = [bytes_of("RssAnon")], threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            most.append(bytes_of("RssAnon"))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    return seconds, max(most)


def bytes_of(key: str) -> int:
    """Return a size of this process from Linux's /proc; 0 elsewhere."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    lines = [line.split() for line in status.splitlines() if line.startswith(f"{key}:")]
    return int(lines[0][1]) << 10 if lines else 0


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in KINDS:
        print(json.dumps(vars(run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))))
    else:
        print(table(measure([int(float(text)) for text in sys.argv[1:]] or SIZES)))
