"""Plan a large corpus: the time, memory and disk of each command, before any of them starts.

Bytes follow from what the code writes: columns, tables, checkpoints and vectors. Seconds are
measured on this machine, on the CPU and with random data, and extrapolated.
"""

from __future__ import annotations

import mmap
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from evergram.data.corpus import Corpus
from evergram.data.prepared import prepare as preparing
from evergram.data.prepared.block_sampler import BlockSampler
from evergram.data.prepared.mapped_corpus import load_prepared
from evergram.data.reading.files import Paths
from evergram.data.reading.interactions import SIDES, BadRows, InteractionSources
from evergram.data.rolling_window import RollingWindow
from evergram.errors import DataError, reason_and_remedy
from evergram.file_content import sha256
from evergram.ids import id_hashes, is_text
from evergram.process_settings import while_training
from evergram.training import build
from evergram.training.first_recipe import AT_RANDOM, LATEST, first_dim, first_epochs
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.resuming import KEPT
from evergram.training.selection import SELECTING, SHARE, queries_to_rank
from evergram.vector_files.open_embeddings import write_vectors

# Measured: interactions of a slice; rows of a table, and steps; bytes of a file, and between reads.
SLICE, ROWS, STEPS, PROBE, WINDOW = 1 << 19, 1 << 18, 12, 64 << 20, 1 << 17
# Bytes of a row number, a count, a number in a vector, and the hash of a trained pair.
ROW, COUNT, NUMBER, HASH = 4, 8, 4, 4
COLUMNS = {"value": 4, "weight": 4, "time": 8}
# Bytes of memory per entity with mapped tables, as `python -m benchmarks entities` measures them.
ENTITY_MEMORY = {"prepare": 16, "train": 20, "export": 7}
# Bytes per entity in unnamed files during training: counts, measures, rates, weights and hashes.
ENTITY_FILES = 70
# Bytes of a held-out pair, and of a training pair of a ranked query, at the peak: 7 and 8 int64.
HELD, SEEN = 56, 64
DATA: dict[str, Any] = {"name": "plan", "data": {"kind": "python"}}


@dataclass(frozen=True)
class CorpusSize:
    """The number of interactions, and of ids of each side; the roles of columns besides query and
    candidate; the bytes of a mean id in an Arrow file; and the seconds that reading all ids took.
    """

    pairs: int
    entities: Mapping[str, int]
    columns: tuple[str, ...] = ("time",)
    id_bytes: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(SIDES, 8.0))
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        """The number of entities of both sides."""
        return sum(self.entities.values())

    def bytes_on_disk(self, dim: int) -> dict[str, int]:
        """Return the size of what the commands write: the folder `prepared`, its `.splits`, a
        `checkpoint`, a version of a `lineage` and its `export`; and of temporary files: of DuckDB's
        `engine`, of an index while it is sorted (`scratch`), and of mapped `tables`."""
        pairs, rows, row = self.pairs, self.rows, NUMBER * dim
        others = sum(COLUMNS[name] for name in self.columns)
        indexed = ROW + sum(COLUMNS[name] for name in self.columns if name != "time")
        ids = round(sum(self.entities[side] * self.id_bytes[side] for side in SIDES))
        # There are two tables while the engine sorts by time.
        unsorted = round((1 + ("time" in self.columns)) * (sum(self.id_bytes.values()) + others))
        return {
            "prepared": pairs * (2 * ROW + others) + ids + COUNT * rows,
            "engine": pairs * unsorted + ids + 2 * COUNT * rows,
            # The training pairs, and two indexes: of these and, by `init`, of all pairs.
            "splits": pairs * (2 * ROW + others + 2 * indexed) + ids + (ROW + COUNT) * rows,
            "scratch": pairs * (ROW + indexed) + ENTITY_FILES * rows,
            # Tables, the best epoch, and sums of squares; and, if mapped, the vectors.
            "checkpoint": rows * (2 * row + NUMBER),
            "tables": rows * (3 * row + NUMBER),
            # The encoder and the vectors, each with ids.
            "lineage": rows * 2 * row + 2 * ids + HASH * pairs,
            "export": rows * row + ids,
        }


@dataclass(frozen=True)
class PlannedStep:
    """The seconds of a step; its peaks of memory that the kernel cannot reclaim and of disk, with
    the files of earlier steps, in bytes; and `training.tables`."""

    name: str
    seconds: float
    memory: int
    disk: int
    fits: bool
    dim: int | None = None
    tables: str | None = None


@dataclass(frozen=True)
class CorpusPlan:
    """The steps for a corpus, with training for several dims; the machine's memory and free disk in
    bytes; the chosen dim and the most epochs; and the commands to run after `prepare`."""

    size: CorpusSize
    memory: int
    free_disk: int
    steps: list[PlannedStep]
    dim: int
    epochs: int
    fits: bool
    commands: list[str]

    def lines(self) -> list[list[str]]:
        """Return the header and a line for each step, as a table for people."""
        rows = [["", "about", "memory", "disk", "tables", "fits here"]]
        for one in self.steps:
            name = one.name if one.dim is None else f"{one.name}, {one.dim}d"
            fits = "yes" if one.fits else "no"
            sizes = _gib(one.memory), _gib(one.disk)
            rows.append([name, _duration(one.seconds), *sizes, one.tables or "", fits])
        return rows

    def __str__(self) -> str:
        """Return the plan as Markdown."""
        header, *lines = self.lines()
        rows = (f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *lines])
        return "\n".join([*self.sentences(), "", *rows])

    def sentences(self) -> Iterator[str]:
        """Yield what the table does not say."""
        queries, candidates = self.size.entities.values()
        yield (
            f"{self.size.pairs:,} pairs of about {queries:,} queries with {candidates:,} "
            f"candidates; {_gib(self.memory)} of memory, {_gib(self.free_disk)} of free disk."
        )
        chosen = [one for one in self.steps if one.dim in (None, self.dim)]
        once = sum(one.seconds for one in chosen)
        most = once + (self.epochs - 1) * sum(one.seconds for one in chosen if one.tables)
        yield (
            f"With {self.dim} dims (d), all steps take about {_duration(once)} for one epoch, and "
            f"{_duration(most)} for {self.epochs} epochs, the most that the recipe trains."
        )


def plan_corpus(
    sources: Paths | pa.Table,
    out: str | Path,
    settings: preparing.PrepareSettings | None = None,
    *,
    overwrite: bool = False,
    progress: preparing.Report = lambda line: None,
) -> CorpusPlan:
    """Plan what `prepare` would do with the same arguments, and the training after it.

    Reads all ids once, and writes nothing to `out`. Interactions are counted exactly; DuckDB's
    HyperLogLog estimates distinct ids within some percent. Features are not counted.

    Raises: DataError: as `prepare`.
    """
    settings, out = settings or preparing.PrepareSettings(), Path(out).absolute()
    preparing.refuse_occupied(out, overwrite=overwrite)
    progress("reading the ids")
    size = count_ids(sources, settings)
    progress("measuring this machine")
    return plan_for(size, out, settings.memory_bytes)


def count_ids(sources: Paths | pa.Table, settings: preparing.PrepareSettings) -> CorpusSize:
    """Count interactions and distinct ids in one pass. Raises: DataError."""
    started, opened = time.perf_counter(), preparing.opened_sources(sources, settings)
    columns = tuple(role for role in InteractionSources(opened).types if role not in SIDES)
    only = [replace(one, names={side: one.names[side] for side in SIDES}) for one in opened]
    bad = BadRows(settings.bad_rows)
    ids = InteractionSources(only, shared_ids=settings.shared_ids, bad_rows=bad)
    counts = [f"approx_count_distinct({side}), avg(strlen({side}::VARCHAR))" for side in SIDES]
    select = f"count(*), {', '.join(counts)}"
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(preparing.Database(Path(folder), settings.memory_bytes)) as database,
    ):
        ids.read(lambda schema, batches: database.create("counts", schema, batches, select))
        ((pairs, *found),) = database.rows("SELECT * FROM counts")
    entities = dict(zip(SIDES, (min(count, pairs) for count in found[::2]), strict=True))
    if settings.shared_ids:  # both sides have all ids
        entities = dict.fromkeys(SIDES, sum(entities.values()))
    # In Arrow a string has an offset of 4 bytes.
    lengths: dict[str, float] = dict(zip(SIDES, found[1::2], strict=True))
    sizes = {s: 4 + size if is_text(ids.types[s]) else 8.0 for s, size in lengths.items()}
    return CorpusSize(pairs, entities, columns, sizes, time.perf_counter() - started)


@dataclass(frozen=True)
class _Machine:
    """Memory, free disk and this process's memory in bytes, and the seconds of a disk read."""

    memory: int
    free: int
    own: int
    miss: float

    def step(self, name: str, seconds: float, memory: int, disk: int, *more: Any) -> PlannedStep:
        fits = self.own + memory <= self.memory and disk <= self.free
        return PlannedStep(name, seconds, self.own + memory, disk, fits, *more)


def plan_for(size: CorpusSize, out: Path, engine_memory: int) -> CorpusPlan:
    """Plan a corpus of this size in the folder `out`; `engine_memory` limits DuckDB, in bytes."""
    above = next(folder for folder in out.absolute().parents if folder.is_dir())
    first = first_dim(size.pairs, *size.entities.values())
    dims = sorted({max(2, first // 4), max(2, first // 2), first})
    try:
        free, miss = shutil.disk_usage(above).free, _seconds_per_miss(above)
        machine = _Machine(preparing.machine_memory(), free, _own_memory(), miss)
        # The first run loads libraries; the difference of the others has no fixed costs.
        _, short, long = (_slice_seconds(size, pairs) for pairs in (1 << 12, SLICE // 16, SLICE))
        prepared, split = (
            size.pairs * np.maximum(0, long - short) / (SLICE - SLICE // 16)
        ).tolist()
        by_dim = {dim: _steps(size, dim, machine, split) for dim in dims}
    except OSError as error:
        raise DataError(f"{above} cannot be measured: {reason_and_remedy(error)}.") from error
    disk, memory = size.bytes_on_disk(first), ENTITY_MEMORY["prepare"] * size.rows
    memory += min(engine_memory, disk["engine"])
    on_disk = disk["prepared"] + disk["splits"] + disk["scratch"]
    common = [
        machine.step("prepare", size.seconds + prepared, memory, disk["prepared"] + disk["engine"]),
        machine.step("init: split, index", split, _streaming(size), on_disk),
    ]
    fitting = [dim for dim, steps in by_dim.items() if all(one.fits for one in steps)]
    # Mapped tables are slow where memory cannot cache them.
    dim = max((dim for dim in fitting if by_dim[dim][0].tables == "memory"), default=dims[0])
    fits = dim in fitting and all(one.fits for one in common)
    steps = [*common, *(steps[0] for steps in by_dim.values()), *by_dim[dim][1:]]
    recipe, lineage = shlex.quote(f"{out.name}.toml"), shlex.quote(f"lineages/{out.name}")
    chosen = f"--set model.dim={dim} --set training.tables={by_dim[dim][0].tables}"
    commands = [
        f"evergram init {shlex.quote(str(out))} --out {recipe}",
        f"evergram train {recipe} --lineage {lineage} {chosen}",
    ]
    epochs = first_epochs(size.pairs)
    return CorpusPlan(size, machine.memory, free, steps, dim, epochs, fits, commands)


def _streaming(size: CorpusSize) -> int:
    """Return the bytes of memory for held-out pairs and entities."""
    is_timed = "time" in size.columns
    last: Any = RollingWindow.parse(LATEST).share if is_timed else AT_RANDOM["share"]
    return int(HELD * last * size.pairs) + ENTITY_MEMORY["train"] * size.rows


def _steps(size: CorpusSize, dim: int, machine: _Machine, split: float) -> list[PlannedStep]:
    """Return the steps of training, of evaluating and publishing, and of exporting both sides."""
    per_pair, per_vector = _seconds_of_training(dim, size)
    on_disk, queries = size.bytes_on_disk(dim), size.entities["query"]
    base = on_disk["prepared"] + on_disk["splits"]
    disk = base + on_disk["scratch"] + KEPT * on_disk["checkpoint"]
    # Two buffers of two columns, an order and what it orders; and the order of all blocks.
    memory = _streaming(size) + 32 * min(BlockSampler.pairs, size.pairs)
    memory += ROW * size.pairs // BlockSampler.block
    seconds, tables = size.pairs * per_pair, "memory"
    judging = split + SHARE * seconds + 2 * per_vector * size.rows
    if machine.own + memory + on_disk["tables"] <= machine.memory:
        memory += on_disk["tables"]
    else:
        cached = max(0, machine.memory - machine.own - memory) / (size.rows * NUMBER * dim)
        # A row of each side is read and written.
        seconds += size.pairs * 2 * 2 * max(0.0, 1 - cached) * machine.miss
        disk, tables = disk + on_disk["tables"], "mapped"
    # The multiply-adds of all epochs, as in `selection.epoch_work`. Half of the queries are tested.
    work = first_epochs(size.pairs) * size.pairs * 6 * dim * (dim + 1)
    per_query = size.entities["candidate"] * (dim + SELECTING)
    ranked, _ = queries_to_rank(-(-queries // 2), (per_query, 0), "auto", work)
    judged = memory + SEEN * ranked * size.pairs // queries, disk + on_disk["lineage"]
    export = ENTITY_MEMORY["export"] * size.rows, base + on_disk["lineage"] + on_disk["export"]
    return [
        machine.step("train one epoch", seconds, memory, disk, dim, tables),
        machine.step("evaluate, publish", judging, *judged, dim),
        machine.step("export both sides", per_vector * size.rows, *export, dim),
    ]


def _slice_seconds(size: CorpusSize, pairs: int) -> NDArray[np.float64]:
    """Return the seconds to prepare, and to split and index, random pairs with the corpus's number
    of pairs per entity."""
    draw, columns = np.random.default_rng(0), dict[str, pa.Array]()
    for side in SIDES:
        ids = draw.integers(0, max(64, pairs * size.entities[side] // size.pairs), pairs)
        columns[side] = pa.array(ids if size.id_bytes[side] == COUNT else ids.astype(str))
    columns |= {role: pa.array(np.arange(1, pairs + 1)) for role in size.columns}
    with tempfile.TemporaryDirectory() as folder:
        times = [_clocks()]
        preparing.prepare(pa.table(columns), Path(folder, "corpus"))
        times.append(_clocks())
        split = {"kind": "time", "last": LATEST} if "time" in size.columns else AT_RANDOM
        recipe = Recipe.of({**DATA, "split": split})
        training = build.split_for(recipe, load_prepared(Path(folder, "corpus")), 0).training
        build.FitSettings.of(recipe, training, 0)
        seconds: NDArray[np.float64] = np.diff([*times, _clocks()], axis=0).min(axis=1)
        return seconds


def _seconds_of_training(dim: int, size: CorpusSize) -> tuple[float, float]:
    """Return the seconds per pair of training, and per vector of writing and checking a file."""
    draw = np.random.default_rng(0)
    rows = {side: np.arange(ROWS) % size.entities[side] for side in SIDES}
    corpus = Corpus.of({side: draw.permutation(ids) for side, ids in rows.items()})
    settings = build.FitSettings.of(Recipe.of({**DATA, "model": {"dim": dim}}), corpus, 0)
    step, sampler, draws = build.prepare(settings, corpus, torch.device("cpu"))
    with while_training(step.encoder.parameters()):
        batches = run_epoch(step, sampler, draws, 0, torch.device("cpu"))
        ends = [_clocks() for _ in islice(batches, 2, STEPS)]
    training = float(np.median(np.diff(ends, axis=0).min(axis=1))) / sampler.batch_size
    vectors, ids = torch.randn(ROWS // 4, dim), pa.array(np.arange(ROWS // 4))
    with tempfile.TemporaryDirectory() as folder:
        path, started = Path(folder, "vectors.parquet"), _clocks()
        write_vectors(path, [(ids, vectors)])
        sha256(path)
        id_hashes(ids)
        return training, float((_clocks() - started).min()) / len(ids)


def _clocks() -> NDArray[np.float64]:
    """Return the time, and the processor time of this process: the smaller of two differences does
    not count other programs."""
    return np.array([time.perf_counter(), time.process_time()])


def _seconds_per_miss(folder: Path) -> float:
    """Return the seconds to read a page of a mapped file in `folder` that is not in memory."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(PROBE)
        with mmap.mmap(file.fileno(), PROBE) as written:
            written.write(os.urandom(1 << 20) * (PROBE >> 20))
            written.flush()  # to the disk
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        starts = np.random.default_rng(0).permutation(PROBE // WINDOW) * WINDOW
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            started = time.perf_counter()
            _ = [mapped[start] for start in starts.tolist()]
            return (time.perf_counter() - started) / len(starts)


def _own_memory() -> int:
    """Return this process's memory that the kernel cannot reclaim; 0 where it is unknown."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _duration(seconds: float) -> str:
    units = (("days", 86_400), ("h", 3600), ("min", 60))
    unit, length = next((one for one in units if seconds >= 1.5 * one[1]), ("s", 1))
    return f"{seconds:,.0f} s" if length == 1 else f"{seconds / length:,.1f} {unit}"
