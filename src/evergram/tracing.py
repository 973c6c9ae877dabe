"""OpenTelemetry spans around slow operations. Off (one comparison per span) until `evergram serve`
(`serving.metrics`) or a program calls `trace_with`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

_NOTHING = nullcontext()
_tracer: Tracer | None = None
_provider: TracerProvider | None = None


def trace_with(provider: TracerProvider | None) -> None:
    """Record spans with a provider in all threads; None turns spans off. To record a service's
    requests, call this before its application is created."""
    global _tracer, _provider
    _provider = provider
    _tracer = None if provider is None else provider.get_tracer("evergram")


def tracer_provider() -> TracerProvider | None:
    """Return the provider that records spans, or None."""
    return None if _tracer is None else _provider


def annotate(**attributes: str | int) -> None:
    """Add attributes, as "evergram.NAME", to the current span."""
    if _tracer is not None:
        from opentelemetry.trace import get_current_span

        get_current_span().set_attributes({f"evergram.{k}": v for k, v in attributes.items()})


def span(name: str, **attributes: str | int) -> AbstractContextManager[Any]:
    """Return a span for a `with` block, as a child of the current span. Nothing is recorded if
    there is no current span, or it is not sampled: otherwise background work, such as filling
    stores, would create a trace for each block of rows."""
    if _tracer is None:
        return _NOTHING
    from opentelemetry.trace import get_current_span

    if not get_current_span().is_recording():
        return _NOTHING
    named = {f"evergram.{key}": value for key, value in attributes.items()}
    child: AbstractContextManager[Any] = _tracer.start_as_current_span(
        f"evergram.{name}", attributes=named
    )
    return child
