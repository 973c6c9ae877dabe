"""Requests are worked on in a few threads, and only so many may wait for one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from evergram.serving.http.errors import RefusedError

T = TypeVar("T")


class Workers:
    """Threads beside the event loop.

    Args:
        size: threads.
        waiting: how many may wait for one.
    """

    def __init__(self, size: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="evergram-worker")
        self._most = size + waiting
        self._busy = 0
        self._lock = threading.Lock()

    @property
    def busy(self) -> int:
        """How many are worked on, or wait."""
        return self._busy

    async def run(self, work: Callable[[], T], done: Callable[[], None]) -> T:
        """What `work` returns. Given up by its caller, it is not begun; begun, it ends.

        Args:
            done: called once when the work has ended or was given up, and also where it is refused.
        Raises: RefusedError: too many wait.
        """
        with self._lock:
            full = self._busy >= self._most
            self._busy += not full
        if full:
            done()
            raise RefusedError(503, "busy", "Too many requests wait already; try again.")

        def ended(_: Future[T]) -> None:
            with self._lock:
                self._busy -= 1
            done()

        future = self._pool.submit(work)
        future.add_done_callback(ended)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Wait for what is under way; what waits is given up."""
        self._pool.shutdown(wait=True, cancel_futures=True)
