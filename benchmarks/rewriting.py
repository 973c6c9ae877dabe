"""How fast files of vectors are rewritten as a past version, and aligned."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.transforms import LinearTransform
from evergram.lineage.lineage import Artefact, Lineage
from evergram.stores.embedding_files import BLOCK, Block, open_embeddings
from evergram.stores.embedding_writers import write_vectors
from evergram.training.align import align
from evergram.training.rewrite import transform_file

ROWS, DIM, ROUNDS = 200_000, 768, 3
FORMATS = ("npy", "safetensors", "arrow", "parquet")
GOAL = 10_000_000


@dataclass(frozen=True)
class Rates:
    """Rows a second, each the best of some rounds: other people's work only slows.

    Args:
        product: of a bare float32 matrix product of the same shape, block by block in memory.
        copied, rewritten: by format.
        aligned: pairs of two files.
    """

    rows: int
    dim: int
    threads: int
    product: float
    copied: dict[str, float]
    rewritten: dict[str, float]
    aligned: float


def measure(rows: int = ROWS, dim: int = DIM, rounds: int = ROUNDS) -> Rates:
    matrix, vectors = torch.randn(dim, dim), torch.randn(BLOCK, dim)
    number = max(1, rows // BLOCK)
    best: dict[str, float] = {}

    def timed(name: str, count: int, action: Callable[[], object]) -> None:
        started = time.perf_counter()
        action()
        rate = count / (time.perf_counter() - started)
        best[name] = max(rate, best.get(name, 0.0))

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
                timed(suffix, rows, partial(transform_file, file, lineage, 0, out))
            if suffix == FORMATS[0]:
                for _ in range(rounds):
                    new = Lineage.create(at / "aligned")
                    timed("align", rows, partial(align, open_embeddings(out), file, new))
                    shutil.rmtree(at / "aligned")
            out.unlink()
            path.unlink()
    return Rates(
        rows,
        dim,
        torch.get_num_threads(),
        best["product"],
        {suffix: best[f"copy {suffix}"] for suffix in FORMATS},
        {suffix: best[suffix] for suffix in FORMATS},
        best["align"],
    )


def table(found: Rates) -> str:
    lines = [
        f"{found.rows:,} rows of {found.dim} floats, {found.threads} threads of torch:",
        "",
        f"| | rows a second | minutes for {GOAL:,} rows |",
        "|---|---|---|",
        _line(f"bare float32 product with a {found.dim} × {found.dim} matrix", found.product),
    ]
    for suffix, rate in found.rewritten.items():
        lines.append(_line(f"`.{suffix}`: copied as it is", found.copied[suffix]))
        lines.append(_line(f"`.{suffix}`: rewritten by `evergram transform`", rate))
    lines.append(_line("`evergram align` of two `.npy` files, publishing included", found.aligned))
    return "\n".join(lines)


def _line(what: str, rate: float) -> str:
    return f"| {what} | {rate:,.0f} | {GOAL / rate / 60:.1f} |"


def _products(vectors: Tensor, matrix: Tensor, number: int) -> None:
    for _ in range(number):
        vectors @ matrix.T


def _lineage(path: Path, matrix: Tensor) -> Lineage:
    """Two versions; what is stored does not matter here, only the way back."""
    lineage = Lineage.create(path)
    one = pa.array([0]), torch.zeros(1, len(matrix))
    for transform in (None, LinearTransform.from_matrix(matrix)):
        lineage.publish(Artefact(len(matrix), {"object": one}, transform, {"metrics": {}}, {}))
    return lineage


def _random(rows: int, dim: int) -> Iterator[Block]:
    draw = torch.Generator().manual_seed(0)
    for start in range(0, rows, BLOCK):
        number = min(BLOCK, rows - start)
        yield pa.array(range(start, start + number)), torch.randn(number, dim, generator=draw)
