"""The dashboard's facts of the running service: requests, latency, drift, rows, backfills."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from datetime import UTC, datetime
from time import monotonic

import numpy as np

from evergram.errors import EvergramError
from evergram.retrieval.backfilling.backfill_files import backfill_progress
from evergram.retrieval.reader import Reader
from evergram.serving.dashboard.schemas import (
    BackfillFacts,
    DriftFacts,
    Live,
    Rate,
    Traffic,
)
from evergram.serving.metrics import Metrics

# Requests that are remembered one by one, and the seconds that latency and rates look back.
REMEMBERED = 20_000
RECENT = 60.0
# Seconds of one rate, and seconds that all rates together look back.
STEP, WINDOW = 5.0, 600.0
# Seconds for which a count of a store's rows is kept: some stores look at each row to count them.
COUNTED_FOR = 5.0
# Facts of a backfill that are shown as they are.
_SHOWN = ("side", "version", "done", "total", "state", "left", "idle")
# Relative distance past which served vectors are no longer like the stored ones.
DRIFT_LIMIT = 0.5


class TrafficLog:
    """Counts of all requests, and the latest ones by themselves."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._begun = monotonic()
        # Requests in each step of STEP seconds since then.
        self._steps: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()
        self._counted = -COUNTED_FOR
        self._rows: dict[str, dict[int, int]] | None = None
        self._latest: deque[tuple[float, str, int | None, float]] = deque(maxlen=REMEMBERED)
        self._requests: Counter[tuple[str, int | None]] = Counter()
        self._errors: Counter[tuple[str, int | None]] = Counter()

    def answered(self, consumer: str, version: int | None, status: int, seconds: float) -> None:
        """Record one request; called from the event loop alone."""
        now = monotonic()
        self._latest.append((now, consumer, version, seconds))
        self._count(now, status >= 500)
        self._requests[consumer, version] += 1
        if status >= 400:
            self._errors[consumer, version] += 1

    def _count(self, now: float, failed: bool) -> None:
        step = int((now - self._begun) / STEP)
        if step not in self._steps:
            for old in [n for n in self._steps if n < step - WINDOW / STEP]:
                del self._steps[old], self._failed[old]
        self._steps[step] += 1
        self._failed[step] += failed

    def live(
        self, reader: Reader, metrics: Metrics, filling: Mapping[str, tuple[int, int, int]]
    ) -> Live:
        """Return the facts as they are now; counts the rows of each store and reads its backfills.

        Args:
            filling: side to the version that its store is being filled with, the rows written and
                the rows in all.
        """
        now = monotonic()
        recent = [request for request in list(self._latest) if request[0] > now - RECENT]
        # More requests than are remembered came in less time.
        full = len(recent) == REMEMBERED
        minutes = max(now - recent[0][0], 1.0) / 60 if full else RECENT / 60
        rates = Counter((consumer, version) for _, consumer, version, _ in recent)
        traffic = [
            Traffic(
                consumer=consumer,
                version=version,
                requests=requests,
                errors=self._errors[consumer, version],
                per_minute=rates[consumer, version] / minutes,
            )
            for (consumer, version), requests in sorted(self._requests.copy().items(), key=_order)
        ]
        seconds = [request[3] for request in recent]
        latency = {
            name: float(np.percentile(seconds, share)) * 1000
            for name, share in (("p50", 50), ("p99", 99))
            if seconds
        }
        drift = [
            DriftFacts(
                side=side, version=version, relative=relative, vectors=count, limit=DRIFT_LIMIT
            )
            for (side, version), (relative, count) in metrics.drift.measured().items()
        ]
        return Live(
            started=self._started,
            traffic=traffic,
            rates=self._rates(now),
            failed=self._failed_lately(now),
            latency_ms=latency or None,
            drift=drift or None,
            rows=self._rows_of(reader, now),
            backfill=_backfills(reader, filling),
        )

    def _rates(self, now: float) -> list[Rate]:
        """Return the rate of each step, oldest first; the last step is under way."""
        elapsed = now - self._begun
        last = int(elapsed / STEP)
        steps = self._steps.copy()
        rates = []
        for step in range(max(0, last - int(WINDOW / STEP) + 1), last + 1):
            seconds = STEP if step < last else max(elapsed - step * STEP, 1.0)
            ago = max(0.0, elapsed - (step + 1) * STEP)
            rates.append(Rate(ago=round(ago, 3), per_minute=steps[step] / seconds * 60))
        return rates

    def _failed_lately(self, now: float) -> int:
        first = int((now - self._begun - WINDOW) / STEP)
        return sum(n for step, n in self._failed.copy().items() if step > first)

    def _rows_of(self, reader: Reader, now: float) -> dict[str, dict[int, int]] | None:
        if now - self._counted >= COUNTED_FOR:
            self._rows, self._counted = _rows(reader), now
        return self._rows


def _order(item: tuple[tuple[str, int | None], int]) -> tuple[str, int]:
    """Sort by consumer, requests that were refused before their version was known first."""
    (consumer, version), _ = item
    return consumer, -1 if version is None else version


def _backfills(reader: Reader, filling: Mapping[str, tuple[int, int, int]]) -> list[BackfillFacts]:
    own = [
        BackfillFacts(side=side, version=version, done=done, total=total, state="being filled")
        for side, (version, done, total) in sorted(dict(filling).items())
    ]
    return own + [
        BackfillFacts(
            per_minute=None if backfill.rate is None else backfill.rate * 60,
            **{name: getattr(backfill, name) for name in _SHOWN},
        )
        for backfill in backfill_progress(reader.lineage.path)
    ]


def _rows(reader: Reader) -> dict[str, dict[int, int]] | None:
    try:
        return {side: reader.store(side).count() for side in reader.sides}
    except EvergramError:
        return None
