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
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.running_service import Running

from evergram import tracing
from evergram.serving.monitoring.drift import Drift
from evergram.serving.monitoring.exporting import export_traces, wants_traces
from evergram.serving.monitoring.metrics import Metrics


def test_drift_is_small_for_all_and_large_for_a_few(served: Running) -> None:
    state = served.service.enter()
    draw = np.random.default_rng(0)
    for ids, low, high in ((range(300), 0.0, 0.3), ([7], 0.8, 100.0)):
        drift = Drift()
        for _ in range(40):
            asked = draw.choice(list(ids), 20)
            embedded = state.reader.embed(asked.tolist(), 0)
            drift.note("object", embedded.ids, embedded.sources)
            drift.look(state.reader)
        relative, count = drift.measured()["object", 2]
        assert count == 40 * 16
        assert relative is not None
        assert low <= relative < high
    state.leave()


def test_drift_is_the_distance_of_second_moments(served: Running) -> None:
    state = served.service.enter()
    drift = Drift()
    embedded = state.reader.embed([1, 2, 3])
    drift.note("object", embedded.ids, embedded.sources)
    drift.look(state.reader)
    stored = state.lineage.moments(2)["object"][2].numpy()
    served_moments = embedded.vectors.T.astype(np.float64) @ embedded.vectors / 3
    expected = np.linalg.norm(served_moments - stored) / np.linalg.norm(stored)
    relative, count = drift.measured()["object", 2]
    assert count == 3
    assert relative == pytest.approx(float(expected))
    state.leave()


class Rows:
    """Rows of version 1 in a lineage that may be restored from a copy.

    Args:
        vector: of every row.
        go: what reading rows waits for.
    """

    def __init__(
        self, fingerprint: str, vector: list[float], go: threading.Event | None = None
    ) -> None:
        self.lineage = SimpleNamespace(
            manifest=lambda version: SimpleNamespace(fingerprint=fingerprint),
            moments=lambda version: {},
        )
        self.asked = threading.Event()
        self._vector, self._go = vector, go

    def embed(self, ids: pa.Array, version: int, side: str) -> Any:
        self.asked.set()
        assert self._go is None or self._go.wait(60)
        vectors = np.tile(np.array(self._vector, dtype=np.float32), (len(ids), 1))
        return SimpleNamespace(vectors=vectors, sources=np.full(len(ids), version))


rows_of: Any = Rows


def noted(rows: int) -> Drift:
    drift = Drift()
    drift.note("object", pa.array(range(rows)), np.ones(rows, dtype=np.int64))
    return drift


def test_nobody_waits_for_a_store_that_is_measured() -> None:
    go = threading.Event()
    drift, reader = noted(3), rows_of("a", [1.0, 2.0], go)
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
    drift = noted(3)
    drift.look(rows_of("a", [1.0, 2.0]))
    # What was encoded by the version before is in no space of the one after.
    drift.note_vectors("object", 1, "a", np.ones((5, 2), dtype=np.float32))
    drift.note("object", pa.array([1]), np.ones(1, dtype=np.int64))
    drift.look(rows_of("b", [1.0, 2.0, 3.0]))
    assert drift.measured() == {("object", 1): (None, 1)}
    drift.note_vectors("object", 1, "b", np.ones((2, 3), dtype=np.float32))
    drift.look(rows_of("b", [1.0, 2.0, 3.0]))
    assert drift.measured() == {("object", 1): (None, 3)}


def test_each_version_is_measured_until_nothing_of_it_was_served_for_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drift, reader = Drift(), rows_of("a", [1.0, 2.0])
    now = 100.0
    monkeypatch.setattr("evergram.serving.monitoring.drift.time.monotonic", lambda: now)
    for version, rows in ((2, 1), (1, 5)):
        drift.note("object", pa.array(range(rows)), np.full(rows, version))
        drift.look(reader)
        now += 3000
    assert drift.measured() == {("object", 1): (None, 5)}
    now -= 3000
    assert drift.measured() == {("object", 1): (None, 5), ("object", 2): (None, 1)}


def samples(served: Running) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = served.get("/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_rows_and_refusals_are_counted(fresh: Running) -> None:
    for _ in range(3):
        fresh.post("/v1/embeddings", {"input": [1, 2], "model": "line@v0"})
    fresh.post("/v1/embeddings", {"input": [900]})
    values = samples(fresh)

    def value(name: str, **labels: str) -> float:
        return values[name, frozenset(labels.items())]

    common = {"route": "/v1/embeddings", "consumer": ""}
    assert value("evergram_requests_total", **common, version="0", status="200") == 3
    assert value("evergram_requests_total", **common, version="", status="404") == 1
    assert value("evergram_rows_total", version="0", computed_from="2") == 6
    assert value("evergram_errors_total", code="unknown_id") == 1
    assert value("evergram_request_seconds_count", route="/v1/embeddings") == 4
    assert value("evergram_production_version") == 2


def test_the_dashboard_shows_requests_errors_latency_and_drift(fresh: Running) -> None:
    assert fresh.get("/").status_code == 200
    for _ in range(3):
        fresh.post("/v1/embeddings", {"input": [1], "model": "line@v0"})
    fresh.post("/v1/embeddings", {"input": [900]})
    handler = fresh.http.app.state.handler  # type: ignore[attr-defined]
    # The service looks by itself only every so many seconds; a look of its own at this moment would
    # take what there is to see.
    until = time.monotonic() + 10
    with fresh.service.entered() as state:
        handler.metrics.drift.look(state.reader)
        while not handler.metrics.drift.measured() and time.monotonic() < until:
            time.sleep(0.05)
    dashboard = fresh.get("/v1/dashboard").json()
    assert dashboard["production"] == 2
    live = dashboard["live"]
    counted = {(t["consumer"], t["version"]): (t["requests"], t["errors"]) for t in live["traffic"]}
    assert counted == {("", 0): (3, 0), ("", None): (1, 1)}
    assert [t["per_minute"] for t in live["traffic"]] == [1, 3]
    assert 0 < live["latency_ms"]["p50"] <= live["latency_ms"]["p99"]
    assert live["rows"] == {"object": {"2": 300}}
    assert live["drift"][0]["vectors"] == 3


def test_the_series_of_one_of_several_processes_carry_its_number() -> None:
    metrics = {number: Metrics(number) for number in (None, 3)}
    for each in metrics.values():
        each.served(0, {2: 6})
        each.answered("/v1/search", "ads", 0, 200, 0.1)
    plain, labelled = (
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(each.page().decode())
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        for each in metrics.values()
    )
    process = ("process", "3")
    assert labelled == {
        (name, labels | {process}): value for (name, labels), value in plain.items()
    }
    assert metrics[3].page() == metrics[3].page()


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


def test_the_variables_decide(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_missing_packages_are_named_and_the_service_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "_tracer", None)
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
        "from evergram.serving.monitoring.exporting import export_traces\n"
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
