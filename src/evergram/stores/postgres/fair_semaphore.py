"""A semaphore in order of arrival, whose waiters are patient while others make progress."""

from __future__ import annotations

import threading
import time
from collections import deque


class FairSemaphore:
    """A semaphore whose waiters are served in order of arrival. A waiter gives up only where nobody
    has released it for a while, however long the queue is.

    Args:
        count: how many may hold it at once.
        patience: seconds that a waiter bears without anybody releasing it.
    """

    def __init__(self, count: int, patience: float) -> None:
        self._free = count
        self._patience = patience
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()
        self._last_end = 0.0

    def acquire(self) -> bool:
        """Wait for the semaphore and return whether it was acquired; then `release` it."""
        since = time.monotonic()
        with self._lock:
            # Those who wait came before.
            if self._free and not self._waiting:
                self._free -= 1
                return True
            called = threading.Event()
            self._waiting.append(called)
        left = self._patience
        while not called.wait(left):
            with self._lock:
                if called.is_set():
                    break
                left = max(since, self._last_end) + self._patience - time.monotonic()
                if left <= 0:
                    self._waiting.remove(called)
                    return False
        return True

    def release(self) -> None:
        """Let the next waiter in."""
        with self._lock:
            self._last_end = time.monotonic()
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
