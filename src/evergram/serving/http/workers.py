"""Threads next to the event loop: for requests, with a limit on how many may wait, and reloads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from evergram.serving.http.errors import RefusedError, log
from evergram.serving.metrics import Metrics
from evergram.serving.service import Service, SharedReader
from evergram.serving.settings import ServiceSettings

T = TypeVar("T")

# Seconds that a request for an unknown version waits for the service to load it.
PATIENCE = 2.0
# Seconds between two measurements of drift.
DRIFT_EVERY = 10.0


class Workers:
    """Threads next to the event loop, and a limit on the requests that wait for one."""

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


class Refresher:
    """Refreshes a service: again and again, and when a request names an unknown version."""

    def __init__(self, service: Service, settings: ServiceSettings, metrics: Metrics) -> None:
        self.service: Service = service
        self.settings: ServiceSettings = settings
        self.metrics: Metrics = metrics
        self._next_drift = 0.0
        # Loading a new version may take long; its own thread keeps it apart from requests.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evergram-refresh")
        self._refresh: Future[bool] | None = None

    async def reloaded(self, before: SharedReader) -> bool:
        """Refresh the service, and wait a moment. Returns: whether its reader is a new one.

        Args:
            before: the reader that a request was refused with.
        """
        if self.service.least_poll:
            return False
        # All requests that wait share one refresh that has not started yet: no queue of them
        # grows behind a long one, which fills stores.
        refresh = self._refresh
        if refresh is None or refresh.running() or refresh.done():
            refresh = self._refresh = self._thread.submit(self.service.refresh)
        end = time.monotonic() + PATIENCE
        while self.service.shared is before and time.monotonic() < end:
            if refresh.done() and self.service.problem is None:
                break
            await asyncio.sleep(0.01)
        return self.service.shared is not before

    async def watch(self) -> None:
        """Refresh the service and measure drift, again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        pause = max(self.settings.poll, self.service.least_poll)
        while True:
            await asyncio.sleep(pause)
            looking = loop.run_in_executor(self._thread, self._look)
            # It may be filling stores; revoked tokens must not wait for that.
            while not (await asyncio.wait({looking}, timeout=pause))[0]:
                await asyncio.to_thread(self.service.refresh_consumers)
            try:
                looking.result()
            except Exception:
                log.exception("Refreshing the service failed; it is tried again.")

    def _look(self) -> None:
        if self.service.refresh():
            self.metrics.reloads.inc()
        self.service.check_stores()
        # Less often: it keeps the interpreter from requests for some milliseconds.
        if time.monotonic() >= self._next_drift:
            self._next_drift = time.monotonic() + DRIFT_EVERY
            with self.service.entered() as state:
                self.metrics.drift.look(state.reader)

    def close(self) -> None:
        """Wait for the refresh under way; none that waits is begun."""
        self._thread.shutdown(wait=True, cancel_futures=True)
