"""How fast files of vectors are rewritten as a past version, and aligned."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.transforms import LinearTransform
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.align import align
from evergram.releasing.transform_file import transform_file
from evergram.vector_files.open_embeddings import BLOCK, Block, open_embeddings
from evergram.vector_files.writers import write_vectors

ROWS, DIM, ROUNDS = 200_000, 768, 2
FORMATS = ("npy", "safetensors", "arrow", "parquet")
GOAL = 10_000_000


@dataclass(frozen=True)
class Rate:
    """Rows a second of wall-clock time and of processor time; the best of some rounds.

    Other work on the same machine slows only the first.
    """

    clock: float = 0.0
    work: float = 0.0


@dataclass(frozen=True)
class Rates:
    """Rates of all formats.

    Args:
        product: of a bare float32 matrix product of the same shape, block by block in memory.
        copied, rewritten: by format.
        aligned: pairs of two files.
    """

    rows: int
    dim: int
    product: Rate
    copied: dict[str, Rate]
    rewritten: dict[str, Rate]
    aligned: Rate


def measure(rows: int = ROWS, dim: int = DIM, rounds: int = ROUNDS) -> Rates:
    """Measure with one torch thread, beside the thread that reads and the one that writes."""
    matrix, vectors = torch.randn(dim, dim), torch.randn(BLOCK, dim)
    number = max(1, rows // BLOCK)
    best: dict[str, Rate] = {}

    def timed(name: str, count: int, action: Callable[[], object]) -> None:
        clock, work = time.perf_counter(), time.process_time()
        action()
        clock, work = time.perf_counter() - clock, time.process_time() - work
        kept = best.get(name, Rate())
        best[name] = Rate(max(kept.clock, count / clock), max(kept.work, count / work))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            at = Path(folder)
            lineage = _lineage(at / "lineage", matrix / dim**0.5)
            for suffix in FORMATS:
                path, out = at / f"new.{suffix}", at / f"old.{suffix}"
                write_vectors(path, _random(rows, dim))
                file = open_embeddings(path)
                for _ in range(rounds):
                    timed("product", number * BLOCK, partial(_products, vectors, matrix, number))
                    timed(f"copy {suffix}", rows, partial(shutil.copyfile, path, out))
                    rewrite = partial(transform_file, file, lineage, 0, out, overwrite=True)
                    timed(suffix, rows, rewrite)
                if suffix == FORMATS[0]:
                    for _ in range(rounds):
                        new = Lineage.create(at / "aligned")
                        timed("align", rows, partial(align, open_embeddings(out), file, new))
                        shutil.rmtree(at / "aligned")
                out.unlink()
                path.unlink()
    finally:
        torch.set_num_threads(threads)
    return Rates(
        rows,
        dim,
        best["product"],
        {suffix: best[f"copy {suffix}"] for suffix in FORMATS},
        {suffix: best[suffix] for suffix in FORMATS},
        best["align"],
    )


def tiny() -> Rates:
    return measure(rows=300, dim=8, rounds=1)


def table(rates: Rates) -> str:
    lines = [
        f"| {rates.rows:,} rows of {rates.dim} floats | rows a second | minutes for {GOAL:,} rows "
        f"| processor minutes for {GOAL:,} rows |",
        "|---|---|---|---|",
        _line(f"bare float32 product with a {rates.dim} × {rates.dim} matrix", rates.product),
    ]
    for suffix, rate in rates.rewritten.items():
        lines.append(_line(f"`.{suffix}`: copied as it is", rates.copied[suffix]))
        lines.append(_line(f"`.{suffix}`: rewritten by `evergram vectors transform`", rate))
    lines.append(
        _line("`evergram vectors align` of two `.npy` files, publishing included", rates.aligned)
    )
    return "\n".join(lines)


def _line(what: str, rate: Rate) -> str:
    minutes = [GOAL / r / 60 for r in (rate.clock, rate.work)]
    return f"| {what} | {rate.clock:,.0f} | {minutes[0]:.1f} | {minutes[1]:.1f} |"


def _products(vectors: Tensor, matrix: Tensor, number: int) -> None:
    for _ in range(number):
        vectors @ matrix.T


def _lineage(path: Path, matrix: Tensor) -> Lineage:
    """Make two versions; only the backward transform matters here, not what is stored."""
    lineage = Lineage.create(path)
    one = pa.array([0]), torch.ones(1, len(matrix))
    facts: dict[str, Any] = {"metrics": {}}
    lineage.publish(Artefact(len(matrix), {"object": one}, None, facts, {}))
    back, follows = LinearTransform.from_matrix(matrix), lineage.manifest(0).fingerprint
    lineage.publish(Artefact(len(matrix), {"object": one}, back, facts, {}, follows=follows))
    return lineage


def _random(rows: int, dim: int) -> Iterator[Block]:
    draw = torch.Generator().manual_seed(0)
    for start in range(0, rows, BLOCK):
        number = min(BLOCK, rows - start)
        yield pa.array(range(start, start + number)), torch.randn(number, dim, generator=draw)
