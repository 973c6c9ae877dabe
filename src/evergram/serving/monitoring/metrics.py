"""Counters and gauges of a service, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from evergram.serving.monitoring.drift import Drift

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one service, in a registry of its own."""

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
            "Version that is read where a request names none.",
            registry=self.registry,
        )
        self.stale = Gauge(
            "evergram_reload_failed",
            "1 while a changed lineage cannot be loaded.",
            registry=self.registry,
        )
        self.reloads = Counter(
            "evergram_reloads",
            "Changes of the lineage and its consumers that were loaded.",
            registry=self.registry,
        )
        self.working = Gauge(
            "evergram_requests_working", "Requests worked on, or waiting.", registry=self.registry
        )
        self.connections = Gauge(
            "evergram_connections", "Open connections.", registry=self.registry
        )
        self._ended = Counter(
            "evergram_connections_ended",
            "Connections that the service closed, by reason.",
            ["why"],
            registry=self.registry,
        )
        self.buffered = Gauge(
            "evergram_buffered_bytes",
            "Bytes taken of the budget for bodies of requests.",
            registry=self.registry,
        )
        self.distance = Gauge(
            "evergram_drift_relative",
            "Distance of the second moments of served vectors from the stored ones, relative.",
            ["side", "version"],
            registry=self.registry,
        )
        # Looking up the counter of some labels takes longer than incrementing it.
        self._requests = lru_cache(4096)(self.requests.labels)
        self._seconds = lru_cache(64)(self.seconds.labels)
        self._rows = lru_cache(4096)(self.rows.labels)
        self.looked_at = Gauge(
            "evergram_drift_vectors",
            "Served vectors that the distance is measured on.",
            ["side", "version"],
            registry=self.registry,
        )

    def answered(
        self, route: str, consumer: str, version: int | None, status: int, seconds: float
    ) -> None:
        """Count one request."""
        number = "" if version is None else str(version)
        self._requests(route, consumer, number, str(status)).inc()
        self._seconds(route).observe(seconds)

    def connection_ended(self, why: str) -> None:
        """Count a connection that the service closed while its client kept it open."""
        self._ended.labels(why).inc()

    def served(self, version: int, sources: Mapping[int, int]) -> None:
        """Count rows read as a version; `sources`: version computed from to rows."""
        for source, rows in sources.items():
            self._rows(str(version), str(source)).inc(rows)

    def page(self) -> bytes:
        """Return the page that Prometheus reads, with drift as it is now."""
        self.distance.clear()
        self.looked_at.clear()
        for side, (version, relative, count) in self.drift.measured().items():
            self.looked_at.labels(side, str(version)).set(count)
            if relative is not None:
                self.distance.labels(side, str(version)).set(relative)
        page: bytes = generate_latest(self.registry)
        return page
