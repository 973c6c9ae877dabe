"""Turns at a few things that many want."""

from __future__ import annotations

import threading
import time
from collections import deque


class Turns:
    """A semaphore whose waiters get on in the order in which they came, and which is patient as
    long as anybody gets on: only where nothing moves is it given up.

    Args:
        count: how many have a turn at once.
        patience: seconds to wait without anybody's turn ending.
    """

    def __init__(self, count: int, patience: float) -> None:
        self._free = count
        self._patience = patience
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()
        self._last_end = 0.0

    def take(self) -> bool:
        """Return whether there was a turn; then `end` it."""
        since = time.monotonic()
        with self._lock:
            # Whoever waits has come before.
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

    def end(self) -> None:
        """End a turn; the next one's begins."""
        with self._lock:
            self._last_end = time.monotonic()
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
