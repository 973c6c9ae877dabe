"""Send spans to a collector by OTLP over HTTP, as the standard OTEL_* variables say."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from evergram.tracing import trace_with, tracer

log: logging.Logger = logging.getLogger("evergram.serving")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def wants_traces(environment: Mapping[str, str]) -> bool:
    """Return whether variables name a collector, and none of them turns spans off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() != "otlp":
        return False
    return any(environment.get(name, "").strip() for name in _ENDPOINTS)


def export_traces(environment: Mapping[str, str] = os.environ) -> bool:
    """Export spans from now on, if the variables ask for it and none are recorded yet.

    The SDK reads the variables itself: endpoint, headers, time-out, sampler, resource. The name of
    the service is "evergram" where OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say none. What
    was not sent is sent when the process ends.

    Returns: whether spans are recorded. Where packages are missing they are not, and the log says
        what to install: a service answers without traces, too.
    """
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
        log.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, and no traces are sent, as %s is not installed: "
            "pip install 'evergram[telemetry]', or unset it.",
            error.name,
        )
        return False
    named = OTELResourceDetector().detect().attributes
    name = str(named.get("service.name", "evergram"))
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace_with(provider)
    return True
