"""What a service says of itself: drift, counters and spans."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families
from tests.support.running_service import Running, running

from evergram import tracing
from evergram.serving.metrics import Drift, Metrics
from evergram.serving.traces import export_traces, wants_traces


def test_drift_is_small_for_all_and_large_for_a_few(served: Running) -> None:
    draw = np.random.default_rng(0)
    with served.service.entered() as state:
        for ids, low, high in ((range(300), 0.0, 0.3), ([7], 0.8, 100.0)):
            drift = Drift()
            for _ in range(40):
                embedded = state.reader.embed(draw.choice(list(ids), 20).tolist(), 0)
                drift.note("object", embedded.ids, embedded.sources)
                drift.look(state.reader)
            relative, count = drift.measured()["object", 2]
            assert count == 40 * 16
            assert relative is not None
            assert low <= relative < high


def test_drift_is_the_distance_of_second_moments(served: Running) -> None:
    drift = Drift()
    with served.service.entered() as state:
        embedded = state.reader.embed([1, 2, 3])
        drift.note("object", embedded.ids, embedded.sources)
        drift.look(state.reader)
        stored = state.lineage.moments(2)["object"][2].numpy()
    served_moments = embedded.vectors.T.astype(np.float64) @ embedded.vectors / 3
    expected = np.linalg.norm(served_moments - stored) / np.linalg.norm(stored)
    relative, count = drift.measured()["object", 2]
    assert count == 3
    assert relative == pytest.approx(float(expected))


class Rows:
    """Rows of a vector in a lineage without moments, which may be restored from a copy.

    Args:
        go: what reading rows waits for.
    """

    def __init__(self, fingerprint: str, vector: list[float], go: Any = None) -> None:
        manifest = SimpleNamespace(fingerprint=fingerprint)
        self.lineage = SimpleNamespace(manifest=lambda _: manifest, moments=lambda _: {})
        self.asked = threading.Event()
        self._vector, self._go = vector, go

    def embed(self, ids: pa.Array, version: int, side: str) -> Any:
        self.asked.set()
        assert self._go is None or self._go.wait(60)
        vectors = np.tile(np.array(self._vector, dtype=np.float32), (len(ids), 1))
        return SimpleNamespace(vectors=vectors, sources=np.full(len(ids), version))


rows_of: Any = Rows


def note(drift: Drift, rows: int, version: int = 1) -> None:
    drift.note("object", pa.array(range(rows)), np.full(rows, version))


def test_nobody_waits_for_a_store_that_is_measured() -> None:
    go, drift = threading.Event(), Drift()
    note(drift, 3)
    reader = rows_of("a", [1.0, 2.0], go)
    with ThreadPoolExecutor(2) as pool:
        looking = pool.submit(drift.look, reader)
        assert reader.asked.wait(60)
        try:
            assert pool.submit(drift.measured).result(30) == {}
        finally:
            go.set()
        looking.result(60)
    assert drift.measured() == {("object", 1): (None, 3)}


def test_another_version_under_the_same_number_is_measured_anew() -> None:
    drift = Drift()
    note(drift, 3)
    drift.look(rows_of("a", [1.0, 2.0]))
    # What was encoded by the version before is in no space of the one after.
    drift.note_vectors("object", 1, "a", np.ones((5, 2), dtype=np.float32))
    note(drift, 1)
    other = rows_of("b", [1.0, 2.0, 3.0])
    drift.look(other)
    assert drift.measured() == {("object", 1): (None, 1)}
    drift.note_vectors("object", 1, "b", np.ones((2, 3), dtype=np.float32))
    drift.look(other)
    assert drift.measured() == {("object", 1): (None, 3)}


def test_each_version_is_shown_until_nothing_of_it_was_served_for_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drift, now = Drift(), 100.0
    monkeypatch.setattr("evergram.serving.metrics.time.monotonic", lambda: now)
    for version, rows in ((2, 1), (1, 5)):
        note(drift, rows, version)
        drift.look(rows_of("a", [1.0, 2.0]))
        now += 3000
    assert drift.measured() == {("object", 1): (None, 5)}
    now -= 3000
    assert drift.measured() == {("object", 1): (None, 5), ("object", 2): (None, 1)}


Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series_of(page: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_metrics_and_dashboard_show_requests_rows_errors_latency_and_drift(fresh: Running) -> None:
    for _ in range(3):
        fresh.post("/v1/embeddings", {"input": [1, 2], "model": "line@v0"})
    fresh.post("/v1/embeddings", {"input": [900]})
    values = series_of(fresh.get("/metrics").text)

    def value(name: str, **labels: str) -> float:
        return values[name, frozenset(labels.items())]

    common = {"route": "/v1/embeddings", "consumer": ""}
    assert value("evergram_requests_total", **common, version="0", status="200") == 3
    assert value("evergram_requests_total", **common, version="", status="404") == 1
    assert value("evergram_rows_total", version="0", computed_from="2") == 6
    assert value("evergram_errors_total", code="unknown_id") == 1
    assert value("evergram_request_seconds_count", route="/v1/embeddings") == 4
    assert value("evergram_production_version") == 2
    drift = fresh.http.app.state.handler.metrics.drift  # type: ignore[attr-defined]
    # The service looks by itself only every so many seconds; a look of its own at this moment would
    # take what there is to see.
    until = time.monotonic() + 10
    with fresh.service.entered() as state:
        drift.look(state.reader)
        while not drift.measured() and time.monotonic() < until:
            time.sleep(0.05)
    dashboard = fresh.get("/v1/dashboard").json()
    assert dashboard["production"] == 2
    live = dashboard["live"]
    counted = {(t["consumer"], t["version"]): (t["requests"], t["errors"]) for t in live["traffic"]}
    assert counted == {("", 0): (3, 0), ("", None): (1, 1)}
    assert [t["per_minute"] for t in live["traffic"]] == [1, 3]
    assert max(rate["per_minute"] for rate in live["rates"]) > 0
    assert 0 < live["latency_ms"]["p50"] <= live["latency_ms"]["p99"]
    assert live["rows"] == {"object": {"2": 300}}
    assert live["drift"][0]["vectors"] == 6


def test_the_series_of_one_of_several_processes_carry_its_number() -> None:
    plain, labelled = Metrics(), Metrics(3)
    for metrics in (plain, labelled):
        metrics.served(0, {2: 6})
        metrics.answered("/v1/search", "ads", 0, 200, 0.1)
    expected = {
        (name, labels | {("process", "3")}): value
        for (name, labels), value in series_of(plain.page().decode()).items()
    }
    for _ in range(2):
        assert series_of(labelled.page().decode()) == expected


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


def test_variables_and_packages_decide_whether_spans_are_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}
    for variables in (ENDPOINT, own, {**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp"}):
        assert wants_traces(variables)
    off = ({"OTEL_SDK_DISABLED": "TRUE"}, {"OTEL_TRACES_EXPORTER": "none"})
    empty = {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}
    for variables in ({}, empty, *({**ENDPOINT, **other} for other in off)):
        assert not wants_traces(variables)
    monkeypatch.setattr(tracing, "_tracer", None)
    assert not export_traces({})
    assert tracing.tracer() is None
    # None makes an import fail as if the package were not there.
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [n for n in sys.modules if n.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    with caplog.at_level(logging.WARNING, "evergram.serving"):
        assert not export_traces(ENDPOINT)
    assert "pip install 'evergram[telemetry]', or unset it" in caplog.text


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An HTTP server that keeps what is posted to it: its address, and (path, body) of each."""
    posted: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", posted
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.long
def test_a_process_sends_its_spans_by_the_time_it_ends(
    collector: tuple[str, list[tuple[str, bytes]]],
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp", reason="needs evergram[telemetry]")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    address, posted = collector
    program = (
        f"from {export_traces.__module__} import export_traces\n"
        "from evergram.tracing import span, tracer\n"
        "assert export_traces() and export_traces()\n"
        "with tracer().start_as_current_span('POST /v1/search'), span('chain', rows=2): pass"
    )
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    ours |= {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_SERVICE_NAME": "films"}
    subprocess.run([sys.executable, "-c", program], check=True, env=ours, timeout=120)
    [(path, body)] = posted
    assert path == "/v1/traces"
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert attributes["service.name"] == "films"
    names = [span.name for span in resource.scope_spans[0].spans]
    assert names == ["evergram.chain", "POST /v1/search"]


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


def test_a_request_has_a_span_with_its_work_below_it(
    traced: Running, kept: InMemorySpanExporter
) -> None:
    answer = traced.post("/v1/embeddings", {"input": [1, 2, 3], "model": "line@v0"})
    assert answer.status_code == 200, answer.text
    spans = spans_of(kept)
    request, chain = spans["POST /v1/embeddings"], spans["evergram.chain"]
    assert request.kind is SpanKind.SERVER
    assert dict(request.attributes) == {
        "http.request.method": "POST",
        "url.path": "/v1/embeddings",
        "http.route": "/v1/embeddings",
        "http.response.status_code": 200,
        "evergram.version": 0,
    }
    for span in (spans["evergram.fetch"], chain):
        assert span.parent.span_id == request.context.span_id
        assert span.attributes["evergram.rows"] == 3
    ends = [chain.attributes[f"evergram.{end}"] for end in ("source", "target")]
    assert ends == [traced.service.production, 0]
    assert traced.post("/v1/search", {"id": 1, "k": 2}).status_code == 200  # in a worker
    spans = spans_of(kept)
    parent = spans["POST /v1/search"].context.span_id
    assert spans["evergram.search"].parent.span_id == parent


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
    for path in ("/healthz", "/readyz", "/metrics"):
        assert traced.get(path).status_code == 200
    traced.service.refresh()
    assert kept.get_finished_spans() == ()


def test_a_failure_is_an_error_and_a_refusal_is_none(
    traced: Running, kept: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert traced.post("/v1/embeddings", {"input": [1], "model": "v99"}).status_code == 404
    assert next(iter(spans_of(kept).values())).status.status_code is StatusCode.UNSET
    # This lineage has no encoder: the span has the error, and the answer no text of it.
    answer = traced.post("/v1/embeddings", {"input": [{"features": {"a": "b"}}]})
    assert answer.status_code == 400, answer.text
    encoder = spans_of(kept)["evergram.encoder"]
    assert encoder.status.status_code is StatusCode.ERROR
    assert encoder.attributes["evergram.rows"] == 1

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("evergram.retrieval.reader.Reader.transform", broken)
    asked = {"vectors": [[0.5] * 10], "source": 2}
    assert traced.post("/v1/transform", asked).status_code == 500
    [request] = spans_of(kept).values()
    assert request.status.status_code is StatusCode.ERROR
    assert request.attributes["error.type"] == "500"
