"""A span for each request, a child of the caller's where the caller sent one (W3C traceparent)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

# What machines ask for every few seconds.
_SILENT = ("/healthz", "/readyz", "/metrics")


class RequestSpans:
    """Middleware that records requests by OpenTelemetry's conventions for HTTP servers.

    Neither tokens, bodies, ids nor consumers are recorded.

    Args:
        tracer: records the spans.
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
