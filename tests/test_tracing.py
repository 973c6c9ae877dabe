"""Spans are off until a provider is set, and then record what they are named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evergram import tracing
from evergram.tracing import span, trace_with


def test_off_no_span_is_made_and_nothing_of_ours_asks_for_opentelemetry() -> None:
    """FastAPI loads its API itself; so the SDK is made to fail, and all goes on."""
    program = (
        "import sys\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "import evergram.tracing as t, evergram.retrieval.reader, evergram.serving.app\n"
        "from evergram.serving.monitoring.exporting import export_traces\n"
        "assert not export_traces({})\n"
        "assert t.tracer() is None and t.span('a', rows=1) is t.span('b')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_provider_gets_spans_until_it_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs evergram[telemetry]")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    monkeypatch.setattr(tracing, "_tracer", None)
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace_with(provider)
    with span("beside all requests"):
        pass
    with provider.get_tracer("a caller's").start_as_current_span("request"):
        with span("outer", rows=3), span("inner"):
            pass
        trace_with(None)
        with span("unseen"):
            pass
    inner, outer, request = kept.get_finished_spans()
    assert [s.name for s in (inner, outer, request)] == [
        "evergram.inner", "evergram.outer", "request",
    ]  # fmt: skip
    assert dict(outer.attributes) == {"evergram.rows": 3}
    assert inner.parent.span_id == outer.context.span_id
    assert outer.parent.span_id == request.context.span_id
