"""What a service says of itself: counters and spans; and the dashboard's facts, of which
whatever is not known to be well is not well."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from tests.support.dashboards import make_lineage, publish, quality, serve
from tests.support.lineages import lineage_of
from tests.support.lineages import publish as publish_next_version
from tests.support.running_service import Running, http_of, running, until

from evergram import tracing
from evergram.errors import IntegrityError
from evergram.lineage.consumers import Baseline, Consumer, Probe
from evergram.lineage.diagnosis import diagnose_lineage
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfill import UNREADABLE, Backfill, BackfillProgress
from evergram.retrieval.fill import fill
from evergram.serving.dashboard import (
    ConsumerFacts,
    DashboardData,
    Health,
    Live,
    PastFacts,
    ProbeFacts,
    Traffic,
    TrafficLog,
    VersionFacts,
    dashboard_data,
    health,
    published_facts,
)
from evergram.serving.metrics import export_traces, wants_traces
from evergram.serving.settings import ServiceSettings
from evergram.stores.open_store import open_store


def test_metrics_and_dashboard_show_requests_rows_errors_and_latency(fresh: Running) -> None:
    for _ in range(3):
        fresh.post("/v1/embeddings", {"input": [1, 2], "model": "line@v0"})
    fresh.post("/v1/embeddings", {"input": [900]})
    page = text_string_to_metric_families(fresh.get("/metrics").text)
    samples = [sample for family in page for sample in family.samples]
    values = {(s.name, frozenset(s.labels.items())): s.value for s in samples}
    common = {"route": "/v1/embeddings", "consumer": ""}
    labels: dict[str, str]
    for name, labels, value in (
        ("requests_total", {**common, "version": "0", "status": "200"}, 3),
        ("requests_total", {**common, "version": "", "status": "404"}, 1),
        ("rows_total", {"version": "0", "computed_from": "2"}, 6),
        ("errors_total", {"code": "unknown_id"}, 1),
        ("request_seconds_count", {"route": "/v1/embeddings"}, 4),
        ("production_version", {}, 2),
    ):
        assert values[f"evergram_{name}", frozenset(labels.items())] == value
    dashboard = fresh.get("/v1/dashboard").json()
    assert dashboard["production"] == 2
    live = dashboard["live"]
    counted = {(t["consumer"], t["version"]): (t["requests"], t["errors"]) for t in live["traffic"]}
    assert counted == {("", 0): (3, 0), ("", None): (1, 1)}
    assert 0 < live["latency_ms"]["p50"] <= live["latency_ms"]["p99"]
    assert live["rows"] == {"object": {"2": 300}}


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
SPANS = f"""
from {export_traces.__module__} import export_traces
from evergram.tracing import span, tracer_provider
assert export_traces() and export_traces()
with tracer_provider().get_tracer("").start_as_current_span("POST /v1"), span("chain", rows=2):
    pass
"""


def test_variables_and_packages_decide_whether_spans_are_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}
    for variables, wanted in (
        (ENDPOINT, True),
        (own, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({}, False),
    ):
        assert wants_traces(variables) == wanted
    monkeypatch.setattr(tracing, "_tracer", None)
    assert not export_traces({})
    assert tracing.tracer_provider() is None
    # None makes an import fail as if the package were not there.
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "opentelemetry", None)
        for name in [n for n in sys.modules if n.startswith("opentelemetry.")]:
            without.delitem(sys.modules, name)
        with caplog.at_level(logging.WARNING, "evergram.serving"):
            assert not export_traces(ENDPOINT)
    assert "pip install 'evergram[telemetry]', or unset it" in caplog.text


@pytest.mark.long
def test_a_process_sends_its_spans_by_the_time_it_ends(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp", reason="needs evergram[telemetry]")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    sent = b""

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal sent
            assert self.path == "/v1/traces"
            sent += self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        collector.timeout = 300.0  # of one request; then `sent` does not grow
        address = f"http://127.0.0.1:{collector.server_port}"
        ours |= {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_SERVICE_NAME": "films"}
        with subprocess.Popen([sys.executable, "-c", SPANS], env=ours) as process:
            seen = -1
            # A slow process sends the parts of a request before the whole, which ends last.
            while b"POST /v1" not in sent and len(sent) > seen:
                seen = len(sent)
                collector.handle_request()
        assert process.returncode == 0
    for word in (b"POST /v1", b"films", b"evergram.chain"):
        assert word in sent


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
    expected = {
        "http.request.method": "POST",
        "url.path": "/v1/embeddings",
        "http.route": "/v1/embeddings",
        "http.response.status_code": 200,
        "evergram.version": 0,
    }
    assert expected.items() <= dict(request.attributes).items()
    for span in (spans["evergram.fetch"], chain):
        assert span.parent.span_id == request.context.span_id
        assert span.attributes["evergram.rows"] == 3
    ends = [chain.attributes[f"evergram.{end}"] for end in ("source", "target")]
    assert ends == [traced.service.production, 0]
    assert traced.post("/v1/search", {"id": 1, "k": 2}).status_code == 200  # in a worker
    spans = spans_of(kept)
    parent = spans["POST /v1/search"].context.span_id
    assert spans["evergram.search"].parent.span_id == parent
    # The caller's trace goes on, and paths with parts are named by their route.
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace}-{caller}-01"}
    answer = traced.http.get("/dashboard/chain.js?token=secret", headers=headers)
    assert answer.status_code == 200
    [request] = spans_of(kept).values()
    assert "secret" not in str(dict(request.attributes))
    assert request.name == "GET /dashboard/{name}"
    assert (request.context.trace_id, request.parent.span_id) == (int(trace, 16), int(caller, 16))
    for path in ("/healthz", "/readyz", "/metrics"):
        assert traced.get(path).status_code == 200
    traced.service.refresh()
    assert kept.get_finished_spans() == ()


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


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    """Four versions that tests only read."""
    return make_lineage(tmp_path_factory.mktemp("films") / "lineage")


@pytest.fixture
def lineage(films: Lineage, tmp_path: Path) -> Lineage:
    shutil.copytree(films.path, tmp_path / "lineage")
    return Lineage.open(tmp_path / "lineage")


def test_facts_of_versions_are_those_of_the_lineage(films: Lineage) -> None:
    data = dashboard_data(films, [], Live())
    assert (data.lineage, data.newest, data.production) == ("films", 3, 3)
    assert [v.dim for v in data.versions] == [12, 14, 13, 15]
    for version in data.versions:
        assert version.quality == films.metrics(version.version)["metrics"]
        assert (version.name, version.encoder) == (f"films@v{version.version}", "file")
    for reading in diagnose_lineage(films):
        past = data.versions[reading.version].past
        measured, certificate = reading.measured, reading.certificate
        assert past is not None
        assert measured is not None
        assert certificate is not None
        assert past.canaries == measured.objects == 20
        assert (past.measured, past.cosine) == (measured.relative, measured.cosine)
        assert (past.estimate, past.bound) == (certificate.relative, certificate.relative_bound)
        assert (past.error, past.history) == (reading.error, reading.history)
    assert data.versions[3].past is None
    assert data.versions[0].step is None
    step = data.versions[2].step
    assert step is not None
    assert step.kind == "linear"
    amplification = torch.linalg.svdvals(films.chain.matrix(2, 1))[0]
    assert step.amplification == pytest.approx(float(amplification))
    check_step(films, data, 2, 1)


def check_step(lineage: Lineage, data: DashboardData, version: int, before: int) -> None:
    """Compare a step with the error on canaries, the objects that its Σ was taken on."""
    step = data.versions[version].step
    assert step is not None
    past, now = (lineage.canaries(n)["object"][1].double() for n in (before, version))
    back = lineage.chain.apply(now, version, before)
    error = ((back - past).square().sum() / past.square().sum()).sqrt()
    assert step.error == pytest.approx(float(error), rel=1e-5)
    assert step.estimate == pytest.approx(float(error), rel=1e-5)


def test_labels_retired_and_withdrawn(lineage: Lineage) -> None:
    lineage.label("stable", 3)
    lineage.retire(1)
    publish(lineage, 16, quality(4), promote=False)
    lineage.withdraw(4, "trained on the wrong day")
    publish(lineage, 11, quality(5), promote=False)
    data = dashboard_data(lineage, [], Live())
    assert (data.newest, data.production) == (5, 3)
    assert [v.labels for v in data.versions] == [[], [], [], ["stable"], [], []]
    assert [v.retired for v in data.versions] == [False, True, False, False, False, False]
    assert [v.past is not None for v in data.versions] == [True, False, True, True, False, False]
    gone = data.versions[4]
    assert gone.withdrawn == "trained on the wrong day"
    assert gone.fingerprint == lineage.withdrawn[4].fingerprint[7:19]
    assert (gone.dim, gone.encoder, gone.quality) == (15, None, {})
    assert gone.step is not None
    assert gone.step.model_dump() == {
        "kind": "identity", "error": None, "estimate": None, "amplification": None,
    }  # fmt: skip
    # Version 5 leads to version 3, and version 2 to the retired one: both are measured.
    check_step(lineage, data, 5, 3)
    check_step(lineage, data, 2, 1)
    for version in data.versions:
        if version.withdrawn is None:
            whole = lineage.manifest(version.version).fingerprint
            assert whole.startswith(f"sha256:{version.fingerprint}")


def reading(consumer: str, value: float | None, **other: str) -> dict[str, Any]:
    """Return the reading of a probe as an upgrade writes it."""
    facts = {"consumer": consumer, "pinned": "v0", "metric": "auc", "value": value}
    return {**facts, "problem": None if value is not None else "/home/somebody/x: damaged", **other}


def consumer(name: str, pinned: str = "v0", **probe: Any) -> Consumer:
    made = Probe(model="m", data="d", side="object", **{"metric": "auc", **probe})
    return Consumer(
        name=name, pinned=pinned, allowed=(pinned,), since="2026-02-01",
        probe=made if probe else None,
    )  # fmt: skip


def test_consumers_and_their_probes(lineage: Lineage) -> None:
    readings = [
        reading("good", 0.75),
        reading("bad", 0.75),
        reading("failed", None),
        reading("far", 0.75, metric="rmse"),
        reading("moved", 0.75, pinned="v1"),
    ]
    publish(lineage, 11, quality(4), probes=readings)
    lineage.label("stable", 4)
    baseline = Baseline(version=3, value=0.5, objects=9)
    data = dashboard_data(
        lineage,
        [
            consumer("stays", "stable"),
            consumer("lost", "canary"),
            consumer("good", min=0.75, baseline=baseline),
            consumer("bad", min=0.76),
            consumer("failed", metric="auc"),
            consumer("far", metric="rmse", max=0.7),
            consumer("moved", min=0.1),
        ],
        Live(),
    )
    consumers = {c.name: c for c in data.consumers}
    assert list(consumers) == ["bad", "failed", "far", "good", "lost", "moved", "stays"]
    assert (consumers["stays"].version, consumers["stays"].probe) == (4, None)
    assert (consumers["lost"].pinned, consumers["lost"].version) == ("canary", None)
    probes = {name: c.probe for name, c in consumers.items() if c.probe is not None}
    assert {name: p.holds for name, p in probes.items()} == {
        "bad": False, "failed": False, "far": False, "good": True, "moved": None,
    }  # fmt: skip
    assert probes["good"].values == {3: 0.5, 4: 0.75}
    assert (probes["failed"].failed, probes["failed"].last) == (True, None)
    assert (probes["far"].less_is_better, probes["far"].limit) == (True, 0.7)
    # What was said of another pin is not of this one.
    assert probes["moved"].values == {}
    assert "somebody" not in data.model_dump_json()


def test_unknown_figures_are_none(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    for dim in (3, 4):
        publish(lineage, dim, {"model": {"recall@20": float("nan")}}, known=False)
    data = dashboard_data(lineage, [], Live())
    past, step = data.versions[0].past, data.versions[1].step
    assert past is not None
    assert step is not None
    assert (past.canaries, past.error, past.estimate, past.bound) == (0, None, None, None)
    assert (step.error, step.estimate) == (None, None)
    assert data.versions[0].quality == {"model": {}}


def test_a_diagnosis_is_made_once(lineage: Lineage) -> None:
    known = published_facts(lineage)
    made = dashboard_data(lineage, [], Live()).versions
    (lineage.path / "versions" / "0" / "canary.parquet").write_bytes(b"")
    assert dashboard_data(lineage, [], Live(), known).versions == made
    with pytest.raises(IntegrityError, match=r"canary\.parquet"):
        dashboard_data(lineage, [], Live())


def test_a_lineage_that_contradicts_itself_is_not_well(lineage: Lineage) -> None:
    older = (lineage.path / "lineage.json").read_bytes()
    publish(lineage, 12, quality(4), promote=False)
    (lineage.path / "lineage.json").write_bytes(older)
    data = dashboard_data(Lineage.open(lineage.path), [], Live())
    assert data.health.state == "not well"
    reason = data.health.reasons[0]
    assert (reason.kind, reason.part) == ("broken", "versions")
    assert "version 4" in reason.sentence
    assert data.checked <= data.at


PAST = PastFacts(
    unseen=20, error=0.1, cosine=0.9, canaries=20, measured=0.1, estimate=0.1, bound=0.2,
    amplification=1.0, history={},
)  # fmt: skip
VERSION = VersionFacts(
    version=0, name="films@v0", created="2026-02-01", dim=8, encoder="file", fingerprint="a",
    labels=[], retired=False, withdrawn=None, quality={}, step=None, past=PAST,
)  # fmt: skip
NEWEST = VERSION.model_copy(update={"version": 2, "past": None})
WITHDRAWN = VERSION.model_copy(update={"version": 1, "past": None, "withdrawn": "wrong day"})
PROBE = ProbeFacts(
    metric="auc", limit=0.8, less_is_better=False, values={2: 0.9}, last=0.9, holds=True
)
CONSUMER = ConsumerFacts(name="ads", pinned="v0", version=0, since="2026-02-01", probe=PROBE)
LIVE = Live(
    rows={"object": {0: 3, 2: 17}},
    backfill=[BackfillProgress(side="object", version=2, done=17, total=20, state="under way")],
    failed=0,
    problems=[],
)


def judged(**changed: dict[str, Any]) -> Health:
    """Judge facts that are all well but for these, of `live`, `consumer`, `probe` and `past`."""

    def facts(name: str, of: Any) -> Any:
        return of.model_copy(update=changed.get(name, {}))

    version = VERSION.model_copy(update={"past": facts("past", PAST)})
    reader = facts("consumer", CONSUMER.model_copy(update={"probe": facts("probe", PROBE)}))
    return health([version, WITHDRAWN, NEWEST], [reader], 2, facts("live", LIVE))


def backfill(state: str) -> dict[str, Any]:
    return {"backfill": [BackfillProgress(side="object", version=2, done=1, total=9, state=state)]}


BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"probe": {"holds": False, "last": 0.7}}, "consumers", "auc is 0.7; it must be at least 0.8"),
    ({"probe": {"failed": True, "holds": False}}, "consumers", "could not be run"),
    ({"consumer": {"version": None}}, "consumers", "v0"),
    (
        {"past": {"contradiction": "The certificate is contradicted."}},
        "certificate",
        "contradicted",
    ),
    ({"live": {"rows": {"object": {1: 5, 2: 5}}}}, "store", "the withdrawn version 1"),
    ({"live": {"rows": {"object": {7: 5, 2: 5}}}}, "store", "the unknown version 7"),
    ({"live": {"rows": {"object": {}}}}, "store", "has no rows"),
    ({"live": backfill("stalled")}, "store", "stalled"),
    ({"live": backfill(UNREADABLE)}, "store", "plan again"),
    ({"live": {"failed": 1}}, "requests", "1 request failed"),
    ({"live": {"problems": ["The store does not answer."]}}, "requests", "does not answer"),
]
NOT_KNOWN: list[tuple[dict[str, Any], str, str]] = [
    ({"consumer": {"probe": None}}, "consumers", "has no probe"),
    ({"probe": {"limit": None, "holds": None}}, "consumers", "has no limit"),
    ({"probe": {"holds": None, "last": None}}, "consumers", "was not run on version 2"),
    ({"past": {"bound": None}}, "certificate", "has no certificate"),
    ({"past": {"canaries": 0}}, "certificate", "has no canaries"),
    ({"live": {"rows": None}}, "store", "could not be counted"),
]


@pytest.mark.parametrize(
    ("kind", "facts", "part", "words"),
    [*(("broken", *case) for case in BROKEN), *(("not known", *case) for case in NOT_KNOWN)],
)
def test_what_is_broken_or_not_measured_is_not_well(
    kind: str, facts: dict[str, Any], part: str, words: str
) -> None:
    found = judged(**facts)
    assert found.state == ("not well" if kind == "broken" else "not known")
    (reason,) = found.reasons
    assert (reason.kind, reason.part) == (kind, part)
    assert words in reason.sentence


def test_all_is_well_where_all_was_measured_and_holds() -> None:
    assert judged() == Health(state="well", reasons=[])
    # Who reads the newest version loses nothing, with or without a probe.
    assert judged(consumer={"version": 2, "probe": None}).state == "well"
    # The broken come first.
    found = judged(live={"failed": 2, "rows": None}, consumer={"probe": None})
    assert found.state == "not well"
    assert [r.kind for r in found.reasons] == ["broken", "not known", "not known"]


def test_the_page_and_its_files_are_sent_with_strict_headers(films: Lineage) -> None:
    data = dashboard_data(films, [], Live())
    with serve(data) as service, httpx.Client(base_url=service.url) as client:
        for path, kind in (
            ("/", "text/html"),
            ("/dashboard/dashboard.css", "text/css"),
            ("/dashboard/chain.js", "text/javascript"),
        ):
            answer = client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
            policy = answer.headers["content-security-policy"]
            rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
            assert (rules["default-src"], rules["img-src"]) == ("'none'", "'self' data:")
            assert {rules[f"{of}-src"] for of in ("script", "style", "connect")} == {"'self'"}
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
        for path in ("/dashboard/nothing.js", "/dashboard/../dashboard.py", "/dashboard/%2e%2e/x"):
            assert client.get(path).status_code == 404
        answer = client.get("/v1/dashboard")
        assert answer.json() == data.model_dump(mode="json")
        service.token = "secret"
        assert client.get("/v1/dashboard").status_code == 401
        assert client.get("/").status_code == 200


def shown(http: TestClient) -> list[dict[str, Any]]:
    backfills: list[dict[str, Any]] = http.get("/v1/dashboard").json()["live"]["backfill"]
    return backfills


def test_a_backfill_is_shown_as_it_goes(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    with (
        open_store(str(tmp_path / "store"), create="int64") as store,
        http_of(lineage.path, settings=ServiceSettings(poll=0.05)) as http,
    ):
        fill(lineage, store, "object")
        publish_next_version(lineage, 1)
        backfill = Backfill(lineage, store, "object")
        until(lambda: http.get("/readyz").json()["version"] == 1)
        assert shown(http) == []
        steps: tuple[tuple[Callable[[], Any], int, str], ...] = (
            (lambda: backfill.plan(batch=50), 0, "planned"),
            (lambda: backfill.apply(rows=100), 100, "paused"),
            (backfill.apply, 300, "applied"),
            (backfill.rollback, 0, "rolled back"),
        )
        for step, done, state in steps:
            step()
            expected = {"side": "object", "version": 1, "done": done, "total": 300, "state": state}
            (facts,) = shown(http)
            assert expected.items() <= facts.items()


def test_failures_count_for_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("evergram.serving.dashboard.monotonic", lambda: now)
    log = TrafficLog()
    reader: Any = type("Reader", (), {"sides": (), "lineage": type("L", (), {"path": Path("/no")})})
    for status in (200, 404, 503):
        log.answered("", 0, status, 0.001)
    live = log.live(reader, ["The store does not answer."])
    assert live.traffic == [Traffic(consumer="", version=0, requests=3, errors=2)]
    assert (live.failed, live.problems) == (1, ["The store does not answer."])
    now += 601
    assert log.live(reader, []).failed == 0
