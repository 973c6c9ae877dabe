"""The counters that Prometheus reads, and the dashboard's figures."""

from __future__ import annotations

import time

from prometheus_client.parser import text_string_to_metric_families
from tests.support.running_service import Running

from evergram.serving.monitoring.metrics import Metrics


def samples(served: Running) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = served.get("/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_rows_and_refusals_are_counted(served: Running) -> None:
    for _ in range(3):
        served.post("/v1/embeddings", {"input": [1, 2], "model": "line@v0"})
    served.post("/v1/embeddings", {"input": [900]})
    values = samples(served)

    def value(name: str, **labels: str) -> float:
        return values[name, frozenset(labels.items())]

    common = {"route": "/v1/embeddings", "consumer": ""}
    assert value("evergram_requests_total", **common, version="0", status="200") == 3
    assert value("evergram_requests_total", **common, version="", status="404") == 1
    assert value("evergram_rows_total", version="0", computed_from="2") == 6
    assert value("evergram_errors_total", code="unknown_id") == 1
    assert value("evergram_request_seconds_count", route="/v1/embeddings") == 4
    assert value("evergram_production_version") == 2


def test_the_dashboard_shows_requests_errors_latency_and_drift(served: Running) -> None:
    assert served.get("/").status_code == 200
    for _ in range(3):
        served.post("/v1/embeddings", {"input": [1], "model": "line@v0"})
    served.post("/v1/embeddings", {"input": [900]})
    handler = served.http.app.state.handler  # type: ignore[attr-defined]
    # The service looks by itself only every so many seconds; a look of its own at this moment would
    # take what there is to see.
    until = time.monotonic() + 10
    with served.service.entered() as state:
        handler.metrics.drift.look(state.reader)
        while not handler.metrics.drift.measured() and time.monotonic() < until:
            time.sleep(0.05)
    dashboard = served.get("/v1/dashboard").json()
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
