"""`BlockOrder`: an order of all interactions of a corpus on disk, shuffled in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergram.data.prepared.column_file import Column, release

Numbers = NDArray[np.int64]
# Blocks that are read before their pages are released.
BLOCKS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class BlockOrder:
    """A shuffle of blocks of consecutive interactions, and of each buffer of blocks.

    An epoch's order is a function of (seed, epoch). Its blocks are in a random order, as many
    consecutive ones as fit are a buffer, and a buffer's interactions are in a random order. Two
    interactions are in one buffer with about the same chance wherever they are in the files, unless
    they are in one block. With n interactions, two neighbours are in one batch n / `pairs` times as
    often as any two others.

    Args:
        lengths: interactions of each part.
        block: interactions of a block; the last one of a part may be shorter.
        pairs: interactions of a buffer, at most; as many blocks as fit.
        seed: of the order.
    """

    lengths: Sequence[int]
    block: int
    pairs: int
    seed: int

    @property
    def blocks_of_parts(self) -> Numbers:
        """The blocks of each part, int64."""
        return -(-np.asarray(self.lengths, dtype=np.int64) // self.block)

    def buffers(self, epoch: int, skipped: int = 0) -> Iterator[tuple[Buffer, int]]:
        """Yield the buffers of an epoch, and how many interactions of each to leave out.

        Args:
            skipped: interactions of the epoch to leave out; buffers that end before are not made.
        """
        blocks = int(self.blocks_of_parts.sum())
        # Four bytes a block, the only memory that grows with the corpus.
        shuffled = torch.randperm(
            blocks, dtype=torch.int32, generator=generator(self.seed, epoch, 0)
        ).numpy()
        fit = max(1, self.pairs // self.block)
        for number, start in enumerate(range(0, blocks, fit)):
            chosen = np.sort(shuffled[start : start + fit]).astype(np.int64)
            buffer = Buffer(self, epoch, number, chosen)
            size = len(buffer)
            if skipped >= size:
                skipped -= size
                continue
            yield buffer, skipped
            skipped = 0

    def places(self, blocks: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the part of each block, and where it starts and ends there, int64 [b] each."""
        counts = self.blocks_of_parts
        first = np.cumsum(counts) - counts
        part = np.searchsorted(first, blocks, side="right") - 1
        start = (blocks - first[part]) * self.block
        return part, start, np.minimum(start + self.block, np.asarray(self.lengths)[part])


@dataclass(frozen=True)
class Buffer:
    """Interactions that are in memory together.

    Args:
        order: the one that it is of.
        epoch, number: which buffer of which epoch it is.
        blocks: int64, the numbers of its blocks, ascending.
    """

    order: BlockOrder
    epoch: int
    number: int
    blocks: Numbers

    def __len__(self) -> int:
        _, start, end = self.order.places(self.blocks)
        return int((end - start).sum())

    def take(self, parts: Sequence[Column], order: Tensor) -> Tensor:
        """Return its interactions of a column, in an order.

        Args:
            parts: the column of each part, [n_p]; pages of mapped ones are released.
            order: int64, places in the order of the files, such as `shuffled()`.
        """
        part, start, end = self.order.places(self.blocks)
        size, pieces = self.order.block, list[Tensor]()
        for number, column in enumerate(parts):
            own = torch.from_numpy(start[(part == number) & (end - start == size)] // size)
            values = torch.from_numpy(column)
            whole = values[: len(column) // size * size].view(-1, size)
            for some in torch.split(own, BLOCKS_AT_ONCE):
                pieces.append(whole.index_select(0, some).flatten())
                release([column])
            # The last block of a part may be shorter.
            pieces += [values[s:] for s in start[(part == number) & (end - start < size)]]
        return torch.cat(pieces)[order]

    def shuffled(self) -> Tensor:
        """Return the order in which its m interactions are used, int64 [m]."""
        draw = generator(self.order.seed, self.epoch, 1 + self.number)
        return torch.randperm(len(self), generator=draw)


def generator(seed: int, *place: int) -> torch.Generator:
    """Return a generator for a place in a run, such as (epoch, buffer); those of two places are
    independent."""
    state = np.random.SeedSequence([abs(seed), int(seed < 0), *place]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
