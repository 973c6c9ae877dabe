"""Tensors mapped from files, which may be larger than memory.

Each file is deleted as soon as it is mapped, so its disk space is freed when its tensor is garbage
collected or the process ends for any reason. The kernel writes changed pages back to disk when
memory is needed.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from evergram.errors import TrainingError

# Compute this many rows of a table at once.
ROWS = 1 << 20
# The suffix of file names, which tensors remember after the file was deleted.
SUFFIX = ".mapped-tensor"


def mapped_zeros(shape: Sequence[int], folder: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return zeros, mapped from a new file in `folder`. Raises: TrainingError: no space."""
    count = math.prod(shape)
    if not count:
        return torch.zeros(*shape, dtype=dtype)
    size = dtype.itemsize * count
    try:
        folder.mkdir(parents=True, exist_ok=True)  # a cache may have been removed meanwhile
        descriptor, name = tempfile.mkstemp(SUFFIX, ".", folder)
        try:
            # Allocate all space now: running out of it later would kill the process.
            os.posix_fallocate(descriptor, 0, size)
            flat = torch.from_file(name, shared=True, size=count, dtype=dtype)
        finally:
            os.close(descriptor)
            Path(name).unlink()
    except OSError as error:
        raise TrainingError(
            f"A table of {list(shape)} numbers, {size:,} bytes, cannot be mapped from {folder}: "
            f"{error.strerror}; free space there, or train on a larger disk."
        ) from error
    return flat.view(*shape)


def mapping_folder(tensor: Tensor) -> Path | None:
    """Return the folder of a tensor from `mapped_zeros`; None for other tensors."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    name = tensor.untyped_storage().filename
    return Path(name).parent if name is not None and name.endswith(SUFFIX) else None


def zeros_beside(tensor: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return zeros with a tensor's storage: on its device, or mapped from a file; of its type, or
    of `dtype`."""
    folder, dtype = mapping_folder(tensor), dtype or tensor.dtype
    if folder is None:
        return tensor.new_zeros(shape, dtype=dtype)
    return mapped_zeros(shape, folder, dtype)


def fill(table: Tensor, values: Callable[[slice], Tensor]) -> Tensor:
    """Fill a table [N, …] in blocks of rows, so that only a block's values are in memory."""
    for start in range(0, len(table), ROWS):
        rows = slice(start, min(start + ROWS, len(table)))
        table[rows] = values(rows)
    return table


def copied_beside(values: Tensor, tensor: Tensor, earlier: Tensor | None = None) -> Tensor:
    """Copy `values`, to a file if `tensor` is mapped from one, else to memory.

    Args:
        values: on the CPU.
        earlier: a copy that is no longer needed; its file is reused if the shape fits.
    """
    folder = mapping_folder(tensor)
    if folder is None:
        return values.clone()
    reuse = earlier is not None and mapping_folder(earlier) and earlier.shape == values.shape
    copy = earlier if earlier is not None and reuse else mapped_zeros(values.shape, folder)
    return copy.copy_(values)


def join_blocks(
    blocks: Iterable[Tensor], size: int, dim: int, folder: Path | None = None
) -> Tensor:
    """Join blocks [b, D] with `size` rows in total to one tensor, [N, D].

    Args:
        folder: maps a result of several blocks from a file there; None keeps it in memory.
    """
    joined: Tensor | None = None
    start = 0
    for block in blocks:
        if len(block) == size:
            return block
        if joined is None:
            shape = size, dim
            joined = block.new_empty(shape) if folder is None else mapped_zeros(shape, folder)
        joined[start : start + len(block)] = block
        start += len(block)
    return torch.zeros(0, dim) if joined is None else joined


def draw_normal(
    table: Tensor, scale: float, generator: torch.Generator, rows: int = 65_536
) -> None:
    """Fill a table [N, D] from N(0, scale²), with the same numbers as a single draw.

    Works in blocks of `rows`, in one pass over the table. A single draw takes several passes, each
    of which reads and writes the disk if the table is larger than memory.
    """
    # torch draws 16 numbers at a time, and redraws the last 16 if the count is not a multiple.
    ends = [*range(rows, len(table) - rows + 1, rows), len(table)]
    for start, end in pairwise([0, *ends]):
        nn.init.normal_(table[start:end], std=scale, generator=generator)
