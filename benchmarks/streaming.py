"""Memory and rate of training on data that stay on disk, by the number of interactions.

Memory is that of a process that loads, splits and trains: its peak of anonymous memory (RssAnon of
/proc/self/status, Linux only), which it cannot give back, and of resident memory, to which files
that are mapped count, too, though the kernel drops them when others need room. The rate is that of
whole epochs over those of the same model on the same pairs in memory, in turns.

    python -m benchmarks streaming
    python -m benchmarks.streaming --sizes 1000000 10000000 100000000 --rate-at 10000000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import torch

from evergram.data.corpus import Corpus
from evergram.data.prepared.block_sampler import BlockSampler
from evergram.data.prepared.files import new_column
from evergram.data.prepared.mapped_corpus import load_prepared
from evergram.process_settings import no_denormals
from evergram.training.build import prepare
from evergram.training.corpora import split_for
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

# The same entities at each size, so that only interactions grow.
QUERIES, CANDIDATES = 100_000, 20_000
SIZES, RATE_AT, ROUNDS = (1_000_000, 3_000_000, 10_000_000), 10_000_000, 3
# Pairs that a process trains on while its memory is watched: more than two buffers.
TRAINED = 5 * BlockSampler.pairs // 2
TINY = (20_000, 40_000)
MIB = 1 << 20
WRITTEN_AT_ONCE = 1 << 20
KINDS = ("prepared", "in memory")


@dataclass(frozen=True)
class Memory:
    """Peaks of one process, in bytes: of anonymous memory once everything is imported (`start`),
    while data are loaded, split and indexed, and in training; and of resident memory."""

    interactions: int
    kind: str
    start: int
    split: int
    training: int
    resident: int


@dataclass(frozen=True)
class Streaming:
    """What was measured.

    Args:
        memory: of each size and kind.
        rates: pairs a second of each kind's epochs, in the order of the rounds.
        rate_at: interactions of the corpus that the rates are of.
    """

    memory: list[Memory]
    rates: dict[str, list[float]]
    rate_at: int

    @property
    def ratio(self) -> float:
        """The rate on prepared data over that in memory, the median of the rounds."""
        pairs = zip(*(self.rates[kind] for kind in KINDS), strict=True)
        return float(median(streamed / there for streamed, there in pairs))


def measure(
    sizes: Sequence[int] = SIZES,
    rate_at: int = RATE_AT,
    rounds: int = ROUNDS,
    trained: int = TRAINED,
) -> Streaming:
    """Return the memory at each size, and the rates at one of them.

    Args:
        trained: pairs that a process trains on while its memory is watched.
    """
    memory = []
    with tempfile.TemporaryDirectory() as there:
        folders = {n: write_planted(Path(there) / str(n), n) for n in {*sizes, rate_at}}
        for size in sizes:
            memory += [_in_a_process(folders[size], kind, trained) for kind in KINDS]
        return Streaming(memory, rates(folders[rate_at], rounds), rate_at)


def tiny() -> Streaming:
    least = BlockSampler.least
    BlockSampler.least = 1000  # so that so few are streamed, too
    try:
        return measure(TINY, TINY[0], 1, TINY[0])
    finally:
        BlockSampler.least = least


def table(streaming: Streaming) -> str:
    """Return a row for each size and kind, and a sentence on the rate."""
    lines = [
        "| interactions | data | anonymous memory at the start | loading, splitting, indexing | "
        "training | resident at most, files included |",
        "|---|---|---|---|---|---|",
    ]
    for each in streaming.memory:
        values = (each.start, each.split, each.training, each.resident)
        cells = " | ".join(f"{value / MIB:,.0f} MiB" for value in values)
        lines.append(f"| {each.interactions:,} | {each.kind} | {cells} |")
    streamed, there = (median(streaming.rates[kind]) for kind in KINDS)
    lines += [
        "",
        f"An epoch of {streaming.rate_at:,} interactions trains {streamed:,.0f} pairs a second "
        f"from prepared data and {there:,.0f} in memory: {streaming.ratio:.2f} times the rate, the "
        f"median of {len(streaming.rates[KINDS[0]])} rounds, on {torch.get_num_threads()} "
        "thread(s).",
    ]
    return "\n".join(lines)


def write_planted(folder: Path, size: int) -> Path:
    """Write a prepared folder of so many interactions in order of time, with queries that come into
    fashion in turn, in memory of one block."""
    part = folder / "parts" / "00000"
    part.mkdir(parents=True)
    draw = np.random.default_rng(0)
    queries, candidates = min(QUERIES, size // 20), min(CANDIDATES, size // 100)
    sides = {"query": queries, "candidate": candidates}
    counts = {side: np.zeros(n, dtype=np.int64) for side, n in sides.items()}
    four, eight = np.dtype("<i4"), np.dtype("<i8")
    with (
        new_column(part / "query.npy", four, size) as query,
        new_column(part / "candidate.npy", four, size) as candidate,
        new_column(part / "time.npy", eight, size) as time_of,
    ):
        for start in range(0, size, WRITTEN_AT_ONCE):
            place = np.arange(start, min(start + WRITTEN_AT_ONCE, size))
            fashion, chance = place / size * queries / 2, draw.random((2, len(place)))
            rows = {
                "query": (fashion + chance[0] * queries / 2).astype(four),
                "candidate": (chance[1] ** 2 * candidates).astype(four),
            }
            query.write(rows["query"].tobytes())
            candidate.write(rows["candidate"].tobytes())
            time_of.write(place.astype(eight).tobytes())
            for side, values in rows.items():
                counts[side] += np.bincount(values, minlength=sides[side])
    for side, count in counts.items():
        entities = pa.table({"id": np.arange(len(count)), "count": count})
        with (
            pa.OSFile(str(folder / f"{side}.arrow"), "wb") as sink,
            ipc.new_file(sink, entities.schema) as file,
        ):
            file.write_table(entities)
    record = {
        "format_version": 1,
        "shared_ids": False,
        "interactions": size,
        "sides": {s: {"entities": n, "ids": "int64", "features": []} for s, n in sides.items()},
        "columns": {"query": "int32", "candidate": "int32", "time": "int64"},
        "parts": [
            {"folder": "parts/00000", "interactions": size, "entities": sides, "sources": []}
        ],
        "fingerprint": f"planted-{size}",
    }
    (folder / "prepared.json").write_text(json.dumps(record))
    return folder


def recipe_of(folder: Path) -> Recipe:
    """Return a recipe whose strengths follow from the data, so that repeats are counted."""
    return Recipe.of(
        {
            "data": {"kind": "prepared", "path": str(folder)},
            "split": {"kind": "random", "share": 0.001},
            "model": {"dim": 32},
            "training": {"epochs": 1, "batch_size": 4096},
        }
    )


def rates(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the pairs a second of whole epochs, prepared and in memory in turns."""
    recipe, prepared = recipe_of(folder), load_prepared(folder)
    memory: dict[str, Corpus] = {KINDS[0]: prepared, KINDS[1]: prepared.in_memory()}
    device = torch.device("cpu")
    parts = {}
    for kind, corpus in memory.items():
        parts[kind] = prepare(FitSettings.of(recipe, corpus, 0), corpus, device)
    measured: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with no_denormals():
        for number in range(rounds):
            for kind in KINDS if number % 2 else KINDS[::-1]:
                step, sampler, draws = parts[kind]
                started = time.perf_counter()
                for _ in run_epoch(step, sampler, draws, number, device):
                    pass
                measured[kind].append(sampler.size / (time.perf_counter() - started))
    return measured


class PeakMemory:
    """Watches this process in a thread: its peaks of anonymous and of resident memory."""

    def __init__(self) -> None:
        self.anonymous = self.resident = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(0.01)

    def look(self) -> None:
        fields = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        self.anonymous = max(self.anonymous, int(fields["RssAnon"].split()[0]) << 10)
        self.resident = max(self.resident, int(fields["VmRSS"].split()[0]) << 10)

    def since_now(self) -> int:
        """Return the peak of anonymous memory so far, and begin anew."""
        self.look()
        peak, self.anonymous = self.anonymous, 0
        return peak


def watched(folder: Path, kind: str, trained: int) -> Memory:
    """Load, split and train in this process, and return its peaks."""
    peaks = PeakMemory()
    start = peaks.since_now()
    recipe = recipe_of(folder)
    corpus: Corpus = load_prepared(folder)
    size = len(corpus)
    if kind == KINDS[1]:
        corpus = load_prepared(folder).in_memory()
    training = split_for(recipe, corpus, 0).training
    settings = FitSettings.of(recipe, training, 0)
    split = peaks.since_now()
    device = torch.device("cpu")
    step, sampler, draws = prepare(settings, training, device)
    steps = -(-trained // sampler.batch_size)
    with no_denormals():
        epoch = 0
        while steps > 0:
            for _ in run_epoch(step, sampler, draws, epoch, device):
                steps -= 1
                if steps == 0:
                    break
            epoch += 1
    return Memory(size, kind, start, split, peaks.since_now(), peaks.resident)


def _in_a_process(folder: Path, kind: str, trained: int) -> Memory:
    command = [sys.executable, "-m", "benchmarks.streaming", "--watch", str(folder), kind]
    command += ["--least", str(BlockSampler.least), "--trained", str(trained)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    return Memory(**json.loads(done.stdout))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure at any sizes and print the table; or watch one process, for the sections."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rate-at", type=int, default=RATE_AT)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--watch", nargs=2, metavar=("FOLDER", "KIND"))
    parser.add_argument("--least", type=int, default=BlockSampler.least)
    parser.add_argument("--trained", type=int, default=TRAINED)
    chosen: Any = parser.parse_args(arguments)
    if chosen.watch is None:
        print(table(measure(chosen.sizes, chosen.rate_at, chosen.rounds, chosen.trained)))
        return
    BlockSampler.least = chosen.least
    folder, kind = chosen.watch
    print(json.dumps(asdict(watched(Path(folder), kind, chosen.trained))))


if __name__ == "__main__":
    main()
