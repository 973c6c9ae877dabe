"""What Prometheus is told."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from evergram.serving.monitoring.drift import Drift

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.drift = Drift()
        self.requests = Counter(
            "evergram_requests",
            "Requests answered.",
            ["route", "consumer", "version", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "evergram_request_seconds",
            "From a request's first byte to its answer.",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.rows = Counter(
            "evergram_rows",
            "Rows served, by the version they were read as and the one they were computed from.",
            ["version", "computed_from"],
            registry=self.registry,
        )
        self.errors = Counter(
            "evergram_errors", "Refusals and failures.", ["code"], registry=self.registry
        )
        self.version = Gauge(
            "evergram_production_version",
            "What is read where no version is named.",
            registry=self.registry,
        )
        self.stale = Gauge(
            "evergram_reload_failed",
            "1 while a lineage that has changed cannot be taken up.",
            registry=self.registry,
        )
        self.reloads = Counter(
            "evergram_reloads",
            "Changes of the lineage and its consumers that were taken up.",
            registry=self.registry,
        )
        self.working = Gauge(
            "evergram_requests_working", "Being worked on, or waiting.", registry=self.registry
        )
        self.connections = Gauge(
            "evergram_connections", "Connections that are open.", registry=self.registry
        )
        self._ended = Counter(
            "evergram_connections_ended",
            "Connections that the service closed, by why.",
            ["why"],
            registry=self.registry,
        )
        self.buffered = Gauge(
            "evergram_buffered_bytes",
            "Of the budget for bodies of requests, what is taken.",
            registry=self.registry,
        )
        self.distance = Gauge(
            "evergram_drift_relative",
            "Distance of the second moments of served vectors from the stored ones, relative.",
            ["side", "version"],
            registry=self.registry,
        )
        # Finding the counter of a request's labels takes longer than counting it.
        self._requests = lru_cache(4096)(self.requests.labels)
        self._seconds = lru_cache(64)(self.seconds.labels)
        self._rows = lru_cache(4096)(self.rows.labels)
        self.looked_at = Gauge(
            "evergram_drift_vectors",
            "How many served vectors that distance is of.",
            ["side", "version"],
            registry=self.registry,
        )

    def answered(
        self, route: str, consumer: str, version: int | None, status: int, seconds: float
    ) -> None:
        """One request."""
        number = "" if version is None else str(version)
        self._requests(route, consumer, number, str(status)).inc()
        self._seconds(route).observe(seconds)

    def ended(self, why: str) -> None:
        """A connection that was closed though its client kept it open."""
        self._ended.labels(why).inc()

    def served(self, version: int, sources: Mapping[int, int]) -> None:
        """Rows read as a version, by what they were computed from."""
        for source, rows in sources.items():
            self._rows(str(version), str(source)).inc(rows)

    def page(self) -> bytes:
        self.distance.clear()
        self.looked_at.clear()
        for side, (version, relative, count) in self.drift.measured().items():
            self.looked_at.labels(side, str(version)).set(count)
            if relative is not None:
                self.distance.labels(side, str(version)).set(relative)
        found: bytes = generate_latest(self.registry)
        return found
