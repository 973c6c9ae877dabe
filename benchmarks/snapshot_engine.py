"""The snapshot store's own engine beside LanceDB: the same rows, the same calls, the same checks.

Each round runs every store once, in a process of its own, so that memory is that of one store.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks.serving import planted
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows, Space

ROWS, DIM, ROUNDS = 200_000, 128, 3
TINY = (400, 8, 1)
BLOCK = 16_384
FETCHED, RESULTS = 100, 10
# What is measured, and its unit; of all of them less is better.
MEASURES = {
    "fill": "s",
    "open and fetch one row": "ms",
    "fetch 100 rows by their ids": "ms",
    "search, exact, ten best of one query": "ms",
    "build the index": "s",
    "search, indexed": "ms",
    "refresh 1 % of the rows": "ms",
    "fetch 100 rows after 20 refreshes": "ms",
    "bytes on disk after the fill": "MB",
    "bytes on disk after 20 refreshes": "MB",
    "memory of its own after searches": "MB",
    "memory with mapped files": "MB",
}
ADDRESSES = {"snapshot": "snapshot:{folder}", "lance": "lance:{folder}#bench"}

FiguresByStore = dict[str, dict[str, float]]


def measure(size: tuple[int, int, int] = (ROWS, DIM, ROUNDS)) -> FiguresByStore:
    """Return the median of each measure by store."""
    rows, dim, rounds = size
    readings: dict[str, list[dict[str, float]]] = {kind: [] for kind in ADDRESSES}
    for number in range(rounds):
        # In turns, so that what else the machine does falls on both.
        for kind in sorted(ADDRESSES, reverse=bool(number % 2)):
            readings[kind].append(_in_a_process(kind, rows, dim))
    return {
        kind: {name: median(one[name] for one in ones) for name in MEASURES}
        for kind, ones in readings.items()
    }


def tiny() -> FiguresByStore:
    return measure(TINY)


def table(figures: FiguresByStore) -> str:
    lines = ["| | snapshot | LanceDB | LanceDB over snapshot |", "|---|---|---|---|"]
    for name, unit in MEASURES.items():
        ours, theirs = figures["snapshot"][name], figures["lance"][name]
        ratio = f"{theirs / ours:.1f}" if ours else "–"
        lines.append(f"| {name} | {ours:.3g} {unit} | {theirs:.3g} {unit} | {ratio} |")
    return "\n".join(lines)


def _in_a_process(kind: str, rows: int, dim: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.snapshot_engine", kind, folder, str(rows), str(dim)],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _all_measures(kind: str, folder: Path, rows: int, dim: int) -> dict[str, float]:
    address = ADDRESSES[kind].format(folder=folder)
    draw = np.random.default_rng(4)
    vectors = planted(rows, dim, 0)
    queries = vectors[draw.integers(0, rows, 64)] + np.float32(0.1)
    figures: dict[str, float] = {}

    def blocks() -> Iterator[Rows]:
        for start in range(0, rows, BLOCK):
            part = slice(start, start + BLOCK)
            yield Rows(0, pa.array(np.arange(rows)[part]), vectors[part])

    def some_ids() -> pa.Array:
        return pa.array(draw.choice(rows, min(FETCHED, rows), replace=False))

    def search(number: int) -> None:
        store.search({0: queries[number % len(queries)][None]}, RESULTS)

    before = _memory()
    store = open_store(address, create="int64")
    figures["fill"] = _seconds(lambda _: store.load(Space(0, dim, "sha256:bench"), blocks()), 1)
    figures["bytes on disk after the fill"] = _bytes(folder) / 1e6
    store.close()

    def open_and_fetch(number: int) -> None:
        with open_store(address) as opened:
            opened.fetch(pa.array([number]))

    figures["open and fetch one row"] = 1e3 * _seconds(open_and_fetch, 5)
    store = open_store(address, create="int64")
    figures["fetch 100 rows by their ids"] = 1e3 * _seconds(lambda _: store.fetch(some_ids()), 200)
    figures["search, exact, ten best of one query"] = 1e3 * _seconds(search, 20)
    figures["build the index"] = _seconds(lambda _: store.build_index(), 1)
    figures["search, indexed"] = 1e3 * _seconds(search, 100)
    own, mapped = (now - then for now, then in zip(_memory(), before, strict=True))
    figures["memory of its own after searches"], figures["memory with mapped files"] = own, mapped
    part = max(1, rows // 100)

    def refresh(number: int) -> None:
        ids = np.arange(number * part, (number + 1) * part) % rows
        store.upsert(Rows(0, pa.array(ids), vectors[ids] + np.float32(1)))

    figures["refresh 1 % of the rows"] = 1e3 * _seconds(refresh, 20)
    after = 1e3 * _seconds(lambda _: store.fetch(some_ids()), 200)
    figures["fetch 100 rows after 20 refreshes"] = after
    store.close()
    figures["bytes on disk after 20 refreshes"] = _bytes(folder) / 1e6
    return figures


def _seconds(action: Callable[[int], object], times: int) -> float:
    """Return the median time of a call; the first of several warms up."""
    taken = []
    for number in range(times + (times > 1)):
        started = time.perf_counter()
        action(number)
        taken.append(time.perf_counter() - started)
    return median(taken[times > 1 :])


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _memory() -> tuple[float, float]:
    """Return the process's own memory and that with mapped files, MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own, whole = (float(lines[name].split()[0]) * 1024 / 1e6 for name in ("RssAnon", "VmRSS"))
    return own, whole


if __name__ == "__main__":
    kind, folder, rows, dim = sys.argv[1:]
    print(json.dumps(_all_measures(kind, Path(folder), int(rows), int(dim))))
