"""Traces are sent where the standard variables name a collector, and by them alone."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from evergram import tracing
from evergram.serving.monitoring.exporting import export_traces, wants_traces

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp"}, True),
    ],
)
def test_the_variables_decide(variables: dict[str, str], wanted: bool) -> None:
    assert wants_traces(variables) is wanted


def test_without_the_variables_nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
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
@pytest.mark.parametrize("named", [None, "films"])
def test_a_process_sends_its_spans_by_the_time_it_ends(
    collector: tuple[str, list[tuple[str, bytes]]], named: str | None
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
    ours |= {"OTEL_EXPORTER_OTLP_ENDPOINT": address}
    ours |= {} if named is None else {"OTEL_SERVICE_NAME": named}
    subprocess.run([sys.executable, "-c", program], check=True, env=ours, timeout=120)
    [(path, body)] = posted
    assert path == "/v1/traces"
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert attributes["service.name"] == (named or "evergram")
    names = [span.name for span in resource.scope_spans[0].spans]
    assert names == ["evergram.chain", "POST /v1/search"]
