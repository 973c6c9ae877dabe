"""Collective operations of the processes of a training run; for one process, the identity.

`evergram.training.distributed` implements them for several processes. Importing this file does not
import torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

WORLD, RANK = "WORLD_SIZE", "RANK"  # environment variables that torchrun sets


class Collectives:
    """The operations of a single process, which already has all rows and sums.

    All processes must call the same operations in the same order, or they wait forever.

    Attributes:
        rank: number of this process, from 0; process 0 writes, prints and publishes.
        size: the number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """True for the process that writes, prints and publishes."""
        return self.rank == 0

    def counts(self, count: int) -> list[int]:
        """Return how many of `count` rows each process has; the numbers differ by at most one."""
        ends = [process * count // self.size for process in range(self.size + 1)]
        return [end - start for start, end in pairwise(ends)]

    def share(self, count: int) -> slice:
        """Return the slice of `count` rows that this process has; it may be empty."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def sum(self, tensor: Tensor, kind: str) -> Tensor:
        """Return the sum of the processes' tensors, without gradient.

        Args:
            kind: name of what is summed, such as "Gramians", for the count of exchanged bytes.
        """
        return tensor

    def rows(self, mine: Tensor, count: int, kind: str) -> Tensor:
        """Gather all `count` rows [count, …], of which each process has its `share`, without
        gradient; rows of `mine` beyond the share are left out."""
        return mine

    def sparse_rows(self, gradient: Tensor, most: int, kind: str) -> Tensor:
        """Return the sum of the processes' sparse gradients [N, D], at most `most` rows each."""
        return gradient

    def from_first(self, make: Callable[[], Any]) -> Any:
        """Call `make` in the first process, and return its result in all."""
        return make()


ALONE = Collectives()


def process_count() -> int:
    """Return the number of processes that torchrun started; 1 without it."""
    text = os.environ.get(WORLD, "")
    return int(text) if text.isdecimal() else 1


def is_first_process() -> bool:
    """Return whether this process is the one that writes, prints and publishes."""
    return process_count() == 1 or os.environ.get(RANK, "0") == "0"
