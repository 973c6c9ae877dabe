"""Processes that are simulated by threads, which hand each other what they have."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import Tensor

from evergram.collectives import Collectives

T = TypeVar("T")


class Threads(Collectives):
    """One thread of several.

    Attributes:
        kinds: what it has exchanged, in order.
    """

    def __init__(self, rank: int, size: int, board: list[Any], barrier: Barrier) -> None:
        self.rank, self.size, self.board, self.barrier = rank, size, board, barrier
        self.kinds: list[str] = []

    def _all(self, mine: Any, kind: str) -> list[Any]:
        self.kinds.append(kind)
        self.board[self.rank] = mine
        self.barrier.wait(10)
        parts = list(self.board)
        self.barrier.wait(10)
        return parts

    def sum(self, tensor: Tensor, kind: str) -> Tensor:
        # A copy, as the caller may go on with its own while others still read it.
        return torch.stack(self._all(tensor.detach().clone(), kind)).sum(0)

    def rows(self, mine: Tensor, count: int, kind: str) -> Tensor:
        return torch.cat(self._all(mine[: self.counts(count)[self.rank]], kind))

    def sparse_rows(self, gradient: Tensor, most: int, kind: str) -> Tensor:
        assert gradient.coalesce().values().shape[0] <= most
        return sum(self._all(gradient, f"{kind}, gathered"), start=torch.zeros_like(gradient))

    def from_first(self, make: Callable[[], Any]) -> Any:
        return self._all(make() if self.is_first else None, "answer")[0]


def in_threads(size: int, call: Callable[[Threads], T]) -> tuple[list[T], list[Threads]]:
    """Return what `call` returns in each of so many threads, and the threads."""
    board, barrier = [None] * size, Barrier(size)
    processes = [Threads(rank, size, board, barrier) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(call, processes)), processes
