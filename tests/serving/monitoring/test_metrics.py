"""What Prometheus is told, and the drift of what is served."""

from __future__ import annotations

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.running_service import Running

from evergram.serving.monitoring.drift import Drift


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


def test_drift_is_small_for_all_and_large_for_a_few(served: Running) -> None:
    """Asked for evenly, served second moments are the stored ones; of one object they are not."""
    state = served.service.enter()
    draw = np.random.default_rng(0)
    for ids, low, high in ((range(300), 0.0, 0.3), ([7], 0.8, 100.0)):
        drift = Drift()
        for _ in range(40):
            asked = draw.choice(list(ids), 20)
            embedded = state.reader.embed(asked.tolist(), 0)
            drift.note("object", embedded.ids, embedded.sources)
            drift.look(state.reader)
        version, relative, count = drift.measured()["object"]
        assert version == 2
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
    version, relative, count = drift.measured()["object"]
    assert (version, count) == (2, 3)
    assert relative == pytest.approx(float(expected))
    state.leave()


def test_what_is_not_stored_is_not_measured(served: Running) -> None:
    state = served.service.enter()
    drift = Drift()
    missing = state.reader.embed([900])
    drift.note("object", missing.ids, missing.sources)
    drift.note("object", missing.ids.slice(0, 0), missing.sources[:0])
    drift.look(state.reader)
    assert drift.measured() == {}
    state.leave()


def test_the_dashboard_is_told_what_happens(served: Running) -> None:
    assert served.get("/").status_code == 200
    for _ in range(3):
        served.post("/v1/embeddings", {"input": [1], "model": "line@v0"})
    served.post("/v1/embeddings", {"input": [900]})
    handler = served.http.app.state.handler  # type: ignore[attr-defined]
    # The service looks by itself only every so many seconds.
    with served.service.entered() as state:
        handler.metrics.drift.look(state.reader)
    dashboard = served.get("/v1/dashboard").json()
    assert dashboard["production"] == 2
    live = dashboard["live"]
    counted = {(t["consumer"], t["version"]): (t["requests"], t["errors"]) for t in live["traffic"]}
    assert counted == {("", 0): (3, 0), ("", None): (1, 1)}
    assert [t["per_minute"] for t in live["traffic"]] == [1, 3]
    assert 0 < live["latency_ms"]["p50"] <= live["latency_ms"]["p99"]
    assert live["rows"] == {"object": {"2": 300}}
    assert live["drift"][0]["vectors"] == 3
