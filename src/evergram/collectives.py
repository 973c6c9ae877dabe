"""Operations that the processes of one training do together; a single process's are the identity.

`evergram.training.distributed` has those of several processes. Importing this file does not import
torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# Variables of the environment that torchrun sets.
WORLD, RANK = "WORLD_SIZE", "RANK"


class Collectives:
    """The operations of one process, which has all rows and all sums already.

    Each process calls the same operations in the same order, or all of them wait for ever.

    Attributes:
        rank: of this process, from 0; the first one writes, prints and publishes.
        size: the number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """True for the process that writes, prints and publishes."""
        return self.rank == 0

    def counts(self, count: int) -> list[int]:
        """Return how many of `count` rows each process has; they differ by at most one."""
        ends = [process * count // self.size for process in range(self.size + 1)]
        return [end - start for start, end in pairwise(ends)]

    def share(self, count: int) -> slice:
        """Return which of `count` rows this process has: consecutive ones, perhaps none."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def sum(self, tensor: Tensor, kind: str) -> Tensor:
        """Return the sum of the processes' tensors, without gradient.

        Args:
            kind: what is summed, by which the bytes exchanged are counted, such as "Gramians".
        """
        return tensor

    def rows(self, mine: Tensor, count: int, kind: str) -> Tensor:
        """Return all `count` rows [count, …] of which each process has its `share`, without
        gradient; rows of `mine` beyond the share are left out."""
        return mine

    def sparse_rows(self, gradient: Tensor, most: int, kind: str) -> Tensor:
        """Return the sum of the processes' sparse gradients [N, D], at most `most` rows each."""
        return gradient

    def from_first(self, make: Callable[[], Any]) -> Any:
        """Return what `make` returns in the first process; it is not called in others."""
        return make()


ALONE = Collectives()


def process_count() -> int:
    """Return the number of processes that torchrun started; 1 without it."""
    text = os.environ.get(WORLD, "")
    return int(text) if text.isdecimal() else 1


def is_first_process() -> bool:
    """Return whether this process writes, prints and publishes: the first of several, or the only
    one."""
    return process_count() == 1 or os.environ.get(RANK, "0") == "0"
