"""Counters and gauges of a service, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from evergram.serving.monitoring.drift import Drift

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one service, in a registry of its own.

    Args:
        process: number of the process among several of a service; every series has it as the label
            `process`.
    """

    def __init__(self, process: int | None = None) -> None:
        self._process = process
        registry = CollectorRegistry()
        self.registry: CollectorRegistry = registry
        self.drift: Drift = Drift()
        self.requests: Counter = Counter(
            "evergram_requests",
            "Requests answered.",
            ["route", "consumer", "version", "status"],
            registry=registry,
        )
        self.seconds: Histogram = Histogram(
            "evergram_request_seconds",
            "From a request's first byte to its answer.",
            ["route"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.rows: Counter = Counter(
            "evergram_rows",
            "Rows served, by the version they were read as and the one they were computed from.",
            ["version", "computed_from"],
            registry=registry,
        )
        self.errors: Counter = Counter(
            "evergram_errors", "Refusals and failures.", ["code"], registry=registry
        )
        self.reranked: Counter = Counter(
            "evergram_reranked",
            "Objects that searches re-ranked, by where their vector came from.",
            ["version", "vector"],
            registry=registry,
        )
        self.reloads: Counter = Counter(
            "evergram_reloads",
            "Changes of the lineage and its consumers that were loaded.",
            registry=registry,
        )
        self._ended = Counter(
            "evergram_connections_ended",
            "Connections that the service closed, by reason.",
            ["why"],
            registry=registry,
        )
        self._add_gauges()
        # Looking up the counter of some labels takes longer than incrementing it.
        self._requests = lru_cache(4096)(self.requests.labels)
        self._seconds = lru_cache(64)(self.seconds.labels)
        self._rows = lru_cache(4096)(self.rows.labels)

    def _add_gauges(self) -> None:
        def gauge(name: str, described: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(f"evergram_{name}", described, labels, registry=self.registry)

        drift = ("side", "version")
        self.version: Gauge = gauge(
            "production_version", "Version that is read where a request names none."
        )
        self.stale: Gauge = gauge("reload_failed", "1 while a changed lineage cannot be loaded.")
        self.text_problem: Gauge = gauge(
            "text_encoder_failed",
            "1 while strings are refused, as their encoder fails or is another.",
        )
        self.sidecar_problems: Gauge = gauge(
            "sidecar_problems", "Files of sidecars that cannot be used as they are; see the log."
        )
        self.kept: Gauge = gauge(
            "kept_vectors", "Vectors computed by searches and kept.", ["version"]
        )
        self.working: Gauge = gauge("requests_working", "Requests worked on, or waiting.")
        self.connections: Gauge = gauge("connections", "Open connections.")
        self.buffered: Gauge = gauge(
            "buffered_bytes", "Bytes taken of the budget for bodies of requests."
        )
        self.distance: Gauge = gauge(
            "drift_relative",
            "Distance of the second moments of served vectors from the stored ones, relative.",
            drift,
        )
        self.looked_at: Gauge = gauge(
            "drift_vectors", "Served vectors that the distance is measured on.", drift
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
        for (side, version), (relative, count) in self.drift.measured().items():
            self.looked_at.labels(side, str(version)).set(count)
            if relative is not None:
                self.distance.labels(side, str(version)).set(relative)
        named = self.registry if self._process is None else _OfProcess(self.registry, self._process)
        page: bytes = generate_latest(named)
        return page


class _OfProcess:
    """A registry's series, each with the label `process`: else the counters of several processes
    behind one port would be taken for one that jumps."""

    def __init__(self, registry: CollectorRegistry, process: int) -> None:
        self._registry, self._label = registry, {"process": str(process)}

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [
                s._replace(labels={**s.labels, **self._label}) for s in family.samples
            ]
            yield family
