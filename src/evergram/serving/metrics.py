"""The service's Prometheus metrics, and the export of trace spans to an OTLP collector over HTTP,
configured by the OTEL_* environment variables."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from evergram.tracing import trace_with, tracer_provider

log: logging.Logger = logging.getLogger("evergram.serving")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one service, in a separate registry."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = CollectorRegistry()

        def counter(name: str, description: str, *labels: str) -> Counter:
            return Counter(f"evergram_{name}", description, labels, registry=self.registry)

        def gauge(name: str, description: str, *labels: str) -> Gauge:
            return Gauge(f"evergram_{name}", description, labels, registry=self.registry)

        request_labels = ("route", "consumer", "version", "status")
        self._requests = counter("requests", "Requests answered.", *request_labels)
        self._seconds = Histogram(
            "evergram_request_seconds",
            "Seconds from a request's headers to its answer.",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._rows = counter("rows", "Rows served.", "version", "computed_from")
        self.errors: Counter = counter("errors", "Refusals and failures.", "code")
        self.reloads: Counter = counter("reloads", "Reloads of a changed lineage.")
        self.ended: Counter = counter("connections_ended", "Connections closed here.", "why")
        self.version: Gauge = gauge("production_version", "Version that is read by default.")
        self.stale: Gauge = gauge("reload_failed", "1 while a changed lineage cannot be loaded.")
        self.text_problem: Gauge = gauge("text_encoder_failed", "1 while strings are refused.")
        self.sidecar_problems: Gauge = gauge("sidecar_problems", "Unusable sidecars; see the log.")
        self.kept: Gauge = gauge("kept_vectors", "Cached vectors of stored texts.", "version")
        self.working: Gauge = gauge("requests_working", "Requests being processed or waiting.")
        self.connections: Gauge = gauge("connections", "Open connections.")
        self.buffered: Gauge = gauge("buffered_bytes", "Bytes of request bodies in memory.")

    def answered(
        self, route: str, consumer: str, version: int | None, status: int, seconds: float
    ) -> None:
        number = "" if version is None else str(version)
        self._requests.labels(route, consumer, number, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def served(self, version: int, sources: Mapping[int, int]) -> None:
        """Count rows served at a version; `sources` maps a source version to a number of rows."""
        for source, rows in sources.items():
            self._rows.labels(str(version), str(source)).inc(rows)

    def page(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        page: bytes = generate_latest(self.registry)
        return page


def wants_traces(environment: Mapping[str, str]) -> bool:
    """Return whether the variables name a collector and do not disable tracing."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    other = environment.get("OTEL_TRACES_EXPORTER", "otlp").lower() != "otlp"
    return not (disabled or other) and any(environment.get(name) for name in _ENDPOINTS)


def export_traces(environment: Mapping[str, str] = os.environ) -> bool:
    """Start to export spans if the variables name a collector, unless the process already records
    spans. Return whether spans are recorded. The OpenTelemetry SDK itself reads the variables for
    endpoint, headers, time-out, sampler and resource."""
    if tracer_provider() is not None:
        return True
    if not wants_traces(environment):
        return False
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        missing = "OTEL_EXPORTER_OTLP_ENDPOINT is set, but no traces are sent: %s is missing; "
        log.warning(missing + "pip install 'evergram[telemetry]', or unset it.", error.name)
        return False
    resource = OTELResourceDetector().detect().attributes
    name = str(resource.get("service.name", "evergram"))
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace_with(provider)
    return True
