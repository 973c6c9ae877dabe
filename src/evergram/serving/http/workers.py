"""Worker threads beside the event loop, and a limit on how many requests may wait for one."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from evergram.serving.http.answers.errors import RefusedError

T = TypeVar("T")


class Workers:
    """Threads beside the event loop.

    Args:
        size: threads.
        waiting: requests that may wait for one.
    """

    def __init__(self, size: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="evergram-worker")
        self._most = size + waiting
        self._busy = 0
        self._lock = threading.Lock()

    @property
    def busy(self) -> int:
        """The number of requests that are worked on, or wait."""
        return self._busy

    async def run(self, work: Callable[[], T], done: Callable[[], None]) -> T:
        """Run `work` in a worker's thread, and return its result.

        Work cancelled before it starts never runs; once started it runs to completion.

        Args:
            done: called exactly once: after the work has ended, was cancelled, or was refused.
        Raises: RefusedError: too many requests wait, or the workers are closed.
        """
        with self._lock:
            full = self._busy >= self._most
            self._busy += not full
        if full:
            done()
            raise RefusedError(503, "busy", "Too many requests wait already; try again.")

        def ended(_: Future[T] | None) -> None:
            with self._lock:
                self._busy -= 1
            done()

        try:
            # With the request's context, in which its span is open.
            future = self._pool.submit(contextvars.copy_context().run, work)
        except RuntimeError as error:  # closed, or the system lends no more threads
            ended(None)
            raise RefusedError(
                503, "busy", "The service is ending, or can start no thread; try again."
            ) from error
        future.add_done_callback(ended)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Cancel the work that waits, and wait for what has started."""
        self._pool.shutdown(wait=True, cancel_futures=True)
