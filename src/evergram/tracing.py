"""Spans of OpenTelemetry around what takes time: off, at the price of one comparison, until
`evergram serve` (`serving.metrics`) or a program calls `trace_with`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

_NOTHING = nullcontext()
_tracer: Tracer | None = None
_provider: TracerProvider | None = None


def trace_with(provider: TracerProvider | None) -> None:
    """Record spans with a provider from now on, in all threads; with None, record none. A service
    records its requests if this is called before its application is made."""
    global _tracer, _provider
    _provider = provider
    _tracer = None if provider is None else provider.get_tracer("evergram")


def tracer() -> Tracer | None:
    """Return the tracer that records spans; None if none are recorded."""
    return _tracer


def tracer_provider() -> TracerProvider | None:
    """Return the provider that spans are recorded with; None if none are recorded."""
    return None if _tracer is None else _provider


def annotate(**attributes: str | int) -> None:
    """Add attributes to the span that is open in this thread or task, as "evergram.NAME"."""
    if _tracer is not None:
        from opentelemetry.trace import get_current_span

        get_current_span().set_attributes({f"evergram.{k}": v for k, v in attributes.items()})


def span(name: str, **attributes: str | int) -> AbstractContextManager[Any]:
    """Return a span for a `with` block, below the one that is open in this thread or task. Where
    none is open, or the open one is not sampled, nothing is recorded: what a service does besides
    requests, such as filling stores, would be a trace for each block of rows."""
    if _tracer is None:
        return _NOTHING
    from opentelemetry.trace import get_current_span

    if not get_current_span().is_recording():
        return _NOTHING
    described = {f"evergram.{key}": value for key, value in attributes.items()}
    recorded: AbstractContextManager[Any] = _tracer.start_as_current_span(
        f"evergram.{name}", attributes=described
    )
    return recorded
