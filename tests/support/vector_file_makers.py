"""Small files of vectors in every format, good and bad, and all that is in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from evergram.vector_files.open_embeddings import EmbeddingFile

TEXT = [f"object-{i}" for i in (3, 1, 4, 0, 5)]
NUMBERS = [30, 10, 40, 0, 50]
NAMES = ("vectors.parquet", "vectors.arrow", "vectors.arrows", "vectors.npy")
VECTORS = np.arange(20, dtype=np.float64).reshape(5, 4) / 4 - 1


def blocks_of(ids: list[Any], vectors: Tensor, size: int) -> Iterator[tuple[pa.Array, Tensor]]:
    for start in range(0, len(ids), size):
        yield pa.array(ids[start : start + size]), vectors[start : start + size]


def whole(file: EmbeddingFile, size: int = 2) -> tuple[list[Any], Tensor]:
    """All of a file, by blocks of `size`."""
    ids: list[Any] = []
    vectors = []
    for some, block in file.blocks(size):
        assert len(some) == len(block) <= size
        ids += some.to_pylist()
        vectors.append(block)
    assert ids == file.ids().to_pylist()
    matrix = torch.cat(vectors)
    assert matrix.shape == (file.rows, file.dim)
    return ids, matrix


def lists(value_type: pa.DataType, kind: str, rows: Any = VECTORS) -> pa.Array:
    """Rows of numbers as one of Arrow's kinds of list."""
    number = np.float16 if value_type == pa.float16() else float
    values = [[None if x is None else number(x) for x in r] for r in rows]
    inner = {
        "fixed": pa.list_(value_type, 4),
        "list": pa.list_(value_type),
        "large": pa.large_list(value_type),
    }[kind]
    return pa.array(values, inner)


def parquet(ids: Any, vectors: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        pq.write_table(pa.table({"id": ids, "vector": vectors}), folder / "x.parquet")
        return folder / "x.parquet"

    return make


def array(values: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.save(folder / "x.npy", values)
        return folder / "x.npy"

    return make


def junk(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(b"this is no file of vectors, whatever its name says")
        return folder / name

    return make


def with_ids(lines: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "x.ids.txt").write_text(lines)
        return array(VECTORS)(folder)

    return make


def put(row: int, value: Any) -> list[list[Any]]:
    rows: list[list[Any]] = VECTORS.tolist()
    rows[row][1] = value
    return rows


GOOD = lists(pa.float32(), "fixed")
