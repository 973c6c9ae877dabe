"""Tensors whose numbers are in files, mapped into memory.

The files have no names: each is removed as soon as it is mapped, and its room on disk is free again
when nothing refers to its tensor, or when the process ends, however it ends. The kernel writes
changed pages back when others need the memory, so a tensor may be larger than memory.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from evergram.errors import TrainingError

# Of the files' names, which a tensor keeps when its file has none any more.
SUFFIX = ".mapped-tensor"


def mapped_zeros(shape: Sequence[int], folder: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return zeros of a shape, in a file of their own.

    Args:
        folder: on the disk that the numbers are to be on; it must exist.
    Raises: TrainingError: the disk has no room for them.
    """
    count = math.prod(shape)
    if not count:
        return torch.zeros(*shape, dtype=dtype)
    size = count * dtype.itemsize
    try:
        descriptor, name = tempfile.mkstemp(SUFFIX, ".", folder)
        try:
            # Allocate all of it now: a mapped file that runs out of room later kills the process.
            os.posix_fallocate(descriptor, 0, size)
            flat = torch.from_file(name, shared=True, size=count, dtype=dtype)
        finally:
            os.close(descriptor)
            Path(name).unlink()
    except OSError as error:
        raise TrainingError(
            f"A table of {list(shape)} numbers, {size:,} bytes, cannot be mapped from {folder}: "
            f"{error.strerror}; make room there, or train where there is more."
        ) from error
    return flat.view(*shape)


def mapping_folder(tensor: Tensor) -> Path | None:
    """Return the folder that `mapped_zeros` mapped a tensor from; None if it did not make it."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    name = tensor.untyped_storage().filename
    return Path(name).parent if name is not None and name.endswith(SUFFIX) else None


def zeros_beside(tensor: Tensor, *shape: int) -> Tensor:
    """Return zeros of a tensor's type that are where it is: on its device, or in a file, too."""
    folder = mapping_folder(tensor)
    return tensor.new_zeros(*shape) if folder is None else mapped_zeros(shape, folder)


def copied_beside(values: Tensor, tensor: Tensor, earlier: Tensor | None = None) -> Tensor:
    """Return a copy of `values`: in a file if `tensor` is in one, and in memory if not.

    Args:
        values: on the CPU.
        earlier: a copy that is no longer needed; its file is written over if it has one and fits.
    """
    folder = mapping_folder(tensor)
    if folder is None:
        return values.clone()
    reused = earlier is not None and mapping_folder(earlier) and earlier.shape == values.shape
    copy = earlier if earlier is not None and reused else mapped_zeros(values.shape, folder)
    return copy.copy_(values)


def join_blocks(
    blocks: Iterable[Tensor], size: int, dim: int, folder: Path | None = None
) -> Tensor:
    """Return blocks [b, D] of `size` rows in all as one tensor, [N, D].

    Each is copied as it comes: beside the result only one block is in memory.

    Args:
        folder: where a result of several blocks is mapped from a file; None keeps it in memory.
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
    """Fill a table [N, D] with the numbers N(0, scale²) that one draw of all of it would give.

    It goes over the table once, in blocks of `rows`; a draw of all would go over it several times:
    of a table that is larger than memory each time is one of reading and writing the disk.
    """
    # torch draws sixteen numbers at a time, and the last sixteen anew where some are left over.
    ends = [*range(rows, len(table) - rows + 1, rows), len(table)]
    for start, end in pairwise([0, *ends]):
        nn.init.normal_(table[start:end], std=scale, generator=generator)
