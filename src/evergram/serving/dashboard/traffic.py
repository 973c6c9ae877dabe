"""What the running service knows of itself, for the dashboard."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np

from evergram.errors import EvergramError
from evergram.retrieval.backfill_progress import backfill_progress
from evergram.retrieval.reader import Reader
from evergram.serving.dashboard.schemas import Backfill, Drift, Live, Rate, Traffic
from evergram.serving.monitoring.metrics import Metrics

# Requests that are remembered one by one, and for how many seconds they count as "of late".
REMEMBERED = 20_000
LATE = 60.0
# Rates are of so many seconds each, and of the last so many seconds together.
STEP, WINDOW = 5.0, 600.0
# Seconds for which the rows of a store are not counted again: some stores look at each of them.
COUNTED_FOR = 5.0
# Of a relative distance; past it, what is asked for is not what was stored.
DRIFT_LIMIT = 0.5


class Latest:
    """The latest requests, and all of them in numbers."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._begun = time.monotonic()
        # How many requests there were in each step since then.
        self._steps: Counter[int] = Counter()
        self._counted = -COUNTED_FOR
        self._rows: dict[str, dict[int, int]] | None = None
        self._latest: deque[tuple[float, str, int | None, float]] = deque(maxlen=REMEMBERED)
        self._requests: Counter[tuple[str, int | None]] = Counter()
        self._errors: Counter[tuple[str, int | None]] = Counter()

    def answered(self, consumer: str, version: int | None, status: int, seconds: float) -> None:
        """One request, told from the event loop."""
        now = time.monotonic()
        self._latest.append((now, consumer, version, seconds))
        self._count(now)
        self._requests[consumer, version] += 1
        if status >= 400:
            self._errors[consumer, version] += 1

    def _count(self, now: float) -> None:
        step = int((now - self._begun) / STEP)
        if step not in self._steps:
            for old in [n for n in self._steps if n < step - WINDOW / STEP]:
                del self._steps[old]
        self._steps[step] += 1

    def live(
        self, reader: Reader, metrics: Metrics, filling: Mapping[str, tuple[int, int, int]]
    ) -> Live:
        """Reads how many rows each store has, and where its backfills are.

        Args:
            filling: by side, the version that a store is being filled with, and how far that is.
        """
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
            rates=self._rates(now),
            latency_ms=latency or None,
            drift=drift or None,
            rows=self._rows_of(reader, now),
            backfill=_backfills(reader, filling),
        )

    def _rates(self, now: float) -> list[Rate]:
        """The step that is not over counts for as long as it has lasted, but for no less than a
        second."""
        elapsed = now - self._begun
        last = int(elapsed / STEP)
        steps = self._steps.copy()
        found = []
        for step in range(max(0, last - int(WINDOW / STEP) + 1), last + 1):
            seconds = STEP if step < last else max(elapsed - step * STEP, 1.0)
            ago = max(0.0, elapsed - (step + 1) * STEP)
            found.append(Rate(ago=round(ago, 3), per_minute=steps[step] / seconds * 60))
        return found

    def _rows_of(self, reader: Reader, now: float) -> dict[str, dict[int, int]] | None:
        if now - self._counted >= COUNTED_FOR:
            self._rows, self._counted = _rows(reader), now
        return self._rows


def _order(item: tuple[tuple[str, int | None], int]) -> tuple[str, int]:
    """By consumer; what was refused before a version was known comes first."""
    (consumer, version), _ = item
    return consumer, -1 if version is None else version


def _backfills(reader: Reader, filling: Mapping[str, tuple[int, int, int]]) -> list[Backfill]:
    own = [
        Backfill(side=side, version=version, done=done, total=total, state="being filled")
        for side, (version, done, total) in sorted(dict(filling).items())
    ]
    return own + [
        Backfill(side=b.side, version=b.version, done=b.done, total=b.total, state=b.state)
        for b in backfill_progress(reader.lineage.path)
    ]


def _rows(reader: Reader) -> dict[str, dict[int, int]] | None:
    try:
        return {side: reader.store(side).count() for side in reader.sides}
    except EvergramError:
        return None
