"""What the running service knows of itself, for the dashboard."""

from __future__ import annotations

import time
from collections import Counter, deque
from datetime import UTC, datetime

import numpy as np

from evergram.errors import EvergramError
from evergram.lineage.reader import Reader
from evergram.serving.dashboard_facts import Drift, Live, Traffic
from evergram.serving.metrics import Metrics

# Requests that are remembered one by one, and for how many seconds they count as "of late".
REMEMBERED = 20_000
LATE = 60.0
# Of a relative distance; past it, what is asked for is not what was stored.
DRIFT_LIMIT = 0.5


class Latest:
    """The latest requests, and all of them in numbers."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._latest: deque[tuple[float, str, int | None, float]] = deque(maxlen=REMEMBERED)
        self._requests: Counter[tuple[str, int | None]] = Counter()
        self._errors: Counter[tuple[str, int | None]] = Counter()

    def answered(self, consumer: str, version: int | None, status: int, seconds: float) -> None:
        """One request, told from the event loop."""
        self._latest.append((time.monotonic(), consumer, version, seconds))
        self._requests[consumer, version] += 1
        if status >= 400:
            self._errors[consumer, version] += 1

    def live(self, reader: Reader, metrics: Metrics) -> Live:
        """Reads how many rows each store has."""
        now = time.monotonic()
        late = [one for one in list(self._latest) if one[0] > now - LATE]
        # Where more came than are remembered, they came in less time.
        full = len(late) == REMEMBERED
        minutes = max(now - late[0][0], 1.0) / 60 if full else LATE / 60
        recent = Counter((consumer, version) for _, consumer, version, _ in late)
        traffic = [
            Traffic(
                consumer=consumer,
                version=version,
                requests=requests,
                errors=self._errors[consumer, version],
                per_minute=recent[consumer, version] / minutes,
            )
            for (consumer, version), requests in sorted(self._requests.copy().items(), key=_order)
        ]
        seconds = [one[3] for one in late]
        latency = {
            name: float(np.percentile(seconds, share)) * 1000
            for name, share in (("p50", 50), ("p99", 99))
            if seconds
        }
        drift = [
            Drift(side=side, version=version, relative=relative, vectors=count, limit=DRIFT_LIMIT)
            for side, (version, relative, count) in metrics.drift.measured().items()
        ]
        return Live(
            started=self._started,
            traffic=traffic,
            latency_ms=latency or None,
            drift=drift or None,
            rows=_rows(reader),
        )


def _order(item: tuple[tuple[str, int | None], int]) -> tuple[str, int]:
    """By consumer; what was refused before a version was known comes first."""
    (consumer, version), _ = item
    return consumer, -1 if version is None else version


def _rows(reader: Reader) -> dict[str, dict[int, int]] | None:
    try:
        return {side: reader.store(side).count() for side in reader.sides}
    except EvergramError:
        return None
