"""Ids of both types, and blocks of ids and vectors, for files of every format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from torch import Tensor

TEXT = [f"object-{i}" for i in (3, 1, 4, 0, 5)]


NUMBERS = [30, 10, 40, 0, 50]


NAMES = ("vectors.parquet", "vectors.arrow", "vectors.arrows", "vectors.npy", "vectors.safetensors")


def blocks_of(ids: list[Any], vectors: Tensor, size: int) -> Iterator[tuple[pa.Array, Tensor]]:
    for start in range(0, len(ids), size):
        yield pa.array(ids[start : start + size]), vectors[start : start + size]
