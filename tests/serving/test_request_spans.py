"""Spans of requests, on a running service, with OpenTelemetry's own exporter in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.support.running_service import Running, running

from evergram import tracing

pytest.importorskip("opentelemetry.sdk", reason="needs evergram[telemetry]")


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    monkeypatch.setattr(tracing, "_tracer", None)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.trace_with(provider)
    return exporter


@pytest.fixture
def traced(kept: InMemorySpanExporter, tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "line") as served:
        yield served


def spans_of(kept: InMemorySpanExporter) -> dict[str, Any]:
    """Return the spans of one request by name, once its own has ended."""
    spans = {span.name: span for span in kept.get_finished_spans()}
    kept.clear()
    assert len({span.context.trace_id for span in spans.values()}) == 1
    return spans


def test_a_request_has_a_span_with_the_fetch_and_the_chain_below_it(
    traced: Running, kept: InMemorySpanExporter
) -> None:
    answer = traced.post("/v1/embeddings", {"input": [1, 2, 3], "model": "line@v0"})
    assert answer.status_code == 200, answer.text
    spans = spans_of(kept)
    request = spans["POST /v1/embeddings"]
    assert request.kind is SpanKind.SERVER
    assert dict(request.attributes) == {
        "http.request.method": "POST",
        "url.path": "/v1/embeddings",
        "http.route": "/v1/embeddings",
        "http.response.status_code": 200,
        "evergram.version": 0,
    }
    for name in ("evergram.fetch", "evergram.chain"):
        assert spans[name].parent.span_id == request.context.span_id
        assert spans[name].attributes["evergram.rows"] == 3
    assert spans["evergram.chain"].attributes["evergram.source"] == traced.service.production
    assert spans["evergram.chain"].attributes["evergram.target"] == 0
    assert traced.post("/v1/search", {"id": 1, "k": 2}).status_code == 200  # in a worker
    spans = spans_of(kept)
    parent = spans["POST /v1/search"].context.span_id
    assert spans["evergram.search"].parent.span_id == parent


def test_features_are_encoded_in_a_span(kept: InMemorySpanExporter, tmp_path: Path) -> None:
    with running(tmp_path / "line") as served:
        # This lineage has no encoder: the span has the error, and the answer no text of it.
        answer = served.post("/v1/embeddings", {"input": [{"features": {"a": "b"}}]})
    assert answer.status_code == 400, answer.text
    encoder = spans_of(kept)["evergram.encoder"]
    assert encoder.status.status_code is StatusCode.ERROR
    assert encoder.attributes["evergram.rows"] == 1


def test_the_callers_trace_goes_on_and_paths_with_parts_are_named_by_their_route(
    traced: Running, kept: InMemorySpanExporter
) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace}-{parent}-01"}
    assert traced.http.get("/v1/models/line@v0", headers=headers).status_code == 200
    [request] = spans_of(kept).values()
    assert request.name == "GET /v1/models/{model}"
    assert request.context.trace_id == int(trace, 16)
    assert request.parent.span_id == int(parent, 16)


def test_a_failure_is_an_error_and_a_refusal_is_none(
    traced: Running, kept: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert traced.post("/v1/embeddings", {"input": [1], "model": "v99"}).status_code == 404
    assert next(iter(spans_of(kept).values())).status.status_code is StatusCode.UNSET

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("evergram.retrieval.reader.Reader.transform", broken)
    asked = {"vectors": [[0.5] * 10], "source": 2}
    assert traced.post("/v1/transform", asked).status_code == 500
    [request] = spans_of(kept).values()
    assert request.status.status_code is StatusCode.ERROR
    assert request.attributes["error.type"] == "500"


def test_what_machines_ask_for_every_few_seconds_has_no_spans(
    traced: Running, kept: InMemorySpanExporter
) -> None:
    assert traced.get("/healthz").status_code == 200
    assert traced.get("/readyz").status_code == 200
    assert traced.get("/metrics").status_code == 200
    time.sleep(0.2)  # and its looks at the lineage, every 50 ms, have none either
    assert kept.get_finished_spans() == ()
