"""What a checkpoint costs, by the number of entities: bytes, seconds, and its share of training.

A real state is written: parameters, optimisers, Gramians, and the parameters of the best epoch.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow as pa
import torch

from evergram.data.corpus import Corpus
from evergram.training.build import Companions, prepare
from evergram.training.corpora import split_for
from evergram.training.loop import Trainer
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.resuming import PATIENCE, SECONDS, Checkpoints, run_identity
from evergram.training.selection import EarlyStopping

SIZES, DIM = (10_000, 100_000, 1_000_000), 64
ROUNDS = 5


@dataclass(frozen=True)
class Cost:
    """The cost of checkpoints of a factorization.

    Args:
        entities: of both sides together.
        bytes: of a checkpoint's file.
        seconds: to write one, with its SHA-256 and the sync of the disk.
        cpu: seconds of CPU of that.
        plain: seconds to write as many bytes and sync them, without anything else.
        restored: seconds to read one and go on from it.
    """

    entities: int
    bytes: int
    seconds: float
    cpu: float
    plain: float
    restored: float

    @property
    def share(self) -> float:
        """Of the time of a training, with nothing chosen."""
        return self.seconds / (max(SECONDS, PATIENCE * self.seconds) + self.seconds)


def measure(sizes: Sequence[int] = SIZES, dim: int = DIM) -> list[Cost]:
    return [_cost(size, dim) for size in sizes]


def tiny() -> list[Cost]:
    return measure((400,), 4)


def table(costs: Sequence[Cost]) -> str:
    """Return a row for each size."""
    lines = [
        "| entities | bytes | seconds to write | of these CPU | over a bare write of as many bytes "
        "| share of training by default | seconds to resume |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.entities:,} | {c.bytes:,} | {c.seconds:.3f} | {c.cpu:.3f} | "
        f"{c.seconds / c.plain:.1f} | {c.share:.2%} | {c.restored:.3f} |"
        for c in costs
    ]
    return "\n".join(lines)


def _cost(entities: int, dim: int) -> Cost:
    recipe = Recipe.of({"data": {"kind": "python"}, "model": {"dim": dim}, "task": _STRENGTHS})
    half = entities // 2
    rows = torch.arange(2 * half)
    # Every entity is in four pairs or more.
    other = torch.randperm(2 * half, generator=torch.Generator().manual_seed(0)) % half
    columns = {
        "query": torch.cat([rows % half, other]),
        "candidate": torch.cat([other, rows % half]),
    }
    corpus = Corpus.from_tables(pa.table({k: v.numpy() for k, v in columns.items()}))
    split = split_for(recipe, corpus, 0)
    settings = FitSettings.of(recipe, split.training, 0)
    parts = prepare(settings, split.training, torch.device("cpu"))
    stopping = EarlyStopping("recall@20")
    run = Trainer(*parts, callbacks=[stopping], seed=0)
    run.fit(steps=2)
    stopping.kept = run.parameters()
    identity = run_identity(recipe.model_dump_json(), 0, split, Companions())
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        checkpoints = Checkpoints(Path(folder), "version 0", identity)
        times = []
        for step in range(ROUNDS):
            started, cpu = time.perf_counter(), time.process_time()
            checkpoints.save(run.state(), step)
            times.append((time.perf_counter() - started, time.process_time() - cpu))
        size = max(path.stat().st_size for path in Path(folder).iterdir())
        plain = median(_bare_write(Path(folder) / "plain", size) for _ in range(ROUNDS))
        started = time.perf_counter()
        state = checkpoints.load()
        assert state is not None
        run.load_state(state)
        restored = time.perf_counter() - started
    seconds, cpu = (median(column) for column in zip(*times, strict=True))
    return Cost(entities, size, seconds, cpu, plain, restored)


_STRENGTHS = {"penalty": 5.0, "l2": 0.1}


def _bare_write(path: Path, size: int) -> float:
    block = os.urandom(1 << 20)
    started = time.perf_counter()
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - started
