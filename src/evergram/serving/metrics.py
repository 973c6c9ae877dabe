"""Counters and gauges of a service, for Prometheus; and whether spans of requests are sent to a
collector, by OTLP over HTTP as the OTEL_* variables say."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from evergram.tracing import trace_with, tracer

log: logging.Logger = logging.getLogger("evergram.serving")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = CollectorRegistry()

        def counter(name: str, described: str, *labels: str) -> Counter:
            return Counter(f"evergram_{name}", described, labels, registry=self.registry)

        def gauge(name: str, described: str, *labels: str) -> Gauge:
            return Gauge(f"evergram_{name}", described, labels, registry=self.registry)

        of_request = ("route", "consumer", "version", "status")
        self._requests = counter("requests", "Requests answered.", *of_request)
        self._seconds = Histogram(
            "evergram_request_seconds",
            "From a request's first byte to its answer.",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._rows = counter("rows", "Rows served.", "version", "computed_from")
        self.errors: Counter = counter("errors", "Refusals and failures.", "code")
        self.reloads: Counter = counter("reloads", "Changes of the lineage that were loaded.")
        self.ended: Counter = counter("connections_ended", "Connections closed here.", "why")
        self.version: Gauge = gauge("production_version", "Version that is read by default.")
        self.stale: Gauge = gauge("reload_failed", "1 while a changed lineage cannot be loaded.")
        self.text_problem: Gauge = gauge("text_encoder_failed", "1 while strings are refused.")
        self.sidecar_problems: Gauge = gauge("sidecar_problems", "Sidecars left out; see the log.")
        self.kept: Gauge = gauge("kept_vectors", "Vectors that searches computed.", "version")
        self.working: Gauge = gauge("requests_working", "Requests worked on, or waiting.")
        self.connections: Gauge = gauge("connections", "Open connections.")
        self.buffered: Gauge = gauge("buffered_bytes", "Bytes of bodies that are held.")

    def answered(
        self, route: str, consumer: str, version: int | None, status: int, seconds: float
    ) -> None:
        """Count one request."""
        number = "" if version is None else str(version)
        self._requests.labels(route, consumer, number, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def served(self, version: int, sources: Mapping[int, int]) -> None:
        """Count rows read as a version; `sources`: version computed from to rows."""
        for source, rows in sources.items():
            self._rows.labels(str(version), str(source)).inc(rows)

    def page(self) -> bytes:
        """Return the page that Prometheus reads."""
        page: bytes = generate_latest(self.registry)
        return page


def wants_traces(environment: Mapping[str, str]) -> bool:
    """Return whether variables name a collector, and none of them turns spans off."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    other = environment.get("OTEL_TRACES_EXPORTER", "otlp").lower() != "otlp"
    return not (disabled or other) and any(environment.get(name) for name in _ENDPOINTS)


def export_traces(environment: Mapping[str, str] = os.environ) -> bool:
    """Export spans from now on, if the variables ask for it and none are recorded yet; return
    whether spans are recorded. The SDK reads the variables itself: endpoint, headers, time-out,
    sampler, resource. A service answers without traces, too."""
    if tracer() is not None:
        return True
    if not wants_traces(environment):
        return False
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        set_ = "OTEL_EXPORTER_OTLP_ENDPOINT is set, and no traces are sent, as %s is missing: "
        log.warning(set_ + "pip install 'evergram[telemetry]', or unset it.", error.name)
        return False
    named = OTELResourceDetector().detect().attributes
    name = str(named.get("service.name", "evergram"))
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace_with(provider)
    return True
