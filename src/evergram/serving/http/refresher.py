"""Reload a service when its lineage changes, and measure drift, beside its requests."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor

from evergram.serving.http.answers.errors import log
from evergram.serving.monitoring.metrics import Metrics
from evergram.serving.served_state import SharedReader
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings

# Seconds that a request for an unknown version waits for the service to load it.
PATIENCE = 2.0
# Seconds between two measurements of drift.
DRIFT_EVERY = 10.0


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
