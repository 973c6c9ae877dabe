"""A span for each request, sent to a collector by OTLP over HTTP as the OTEL_* variables say."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evergram.tracing import trace_with, tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

log: logging.Logger = logging.getLogger("evergram.serving")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# What machines ask for every few seconds.
_SILENT = ("/healthz", "/readyz", "/metrics")


class RequestSpans:
    """Middleware that records requests by OpenTelemetry's conventions for HTTP servers, each as a
    child of the caller's span where the caller sent one (W3C traceparent).

    Neither tokens, bodies, ids nor consumers are recorded.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app, self._tracer = app, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _SILENT:
            await self._app(scope, receive, send)
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode

        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        method = scope["method"]
        with self._tracer.start_as_current_span(
            method,
            context=extract(headers),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": scope["path"]},
        ) as span:

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    note(message)
                await send(message)

            def note(message: Message) -> None:
                status: int = message["status"]
                span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    span.set_attribute("error.type", str(status))
                    span.set_status(Status(StatusCode.ERROR))
                for key, value in message.get("headers", ()):
                    if key == b"x-evergram-version":
                        span.set_attribute("evergram.version", int(value))
                        name(scope["path"])  # such an answer has no parts in its path
                route: Any = scope.get("route")
                if route is not None:
                    name(route.path)

            def name(route: str) -> None:
                span.set_attribute("http.route", route)
                span.update_name(f"{method} {route}")

            await self._app(scope, receive, noted)


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
