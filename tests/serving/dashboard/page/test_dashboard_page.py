"""The dashboard in a real browser: what it shows."""

from __future__ import annotations

from typing import Any

from tests.support.browser import Browser
from tests.support.dashboards import Service
from tests.support.page_views import refresh, rows, show, text, written

from evergram.serving.dashboard.schemas import (
    DashboardData,
    Live,
    Rate,
    StepFacts,
    Traffic,
)


def test_it_shows_what_the_service_says(
    browser: Browser, service: Service, data: DashboardData
) -> None:
    show(browser, service)
    assert text(browser, "h1") == "films"
    assert text(browser, "#summary") == "4 versions, 2 consumers"
    facts = browser.run("return document.getElementById('facts').innerText")
    assert "1 probe fails" in facts
    versions = rows(browser, "versions")
    assert [r[0] for r in versions] == ["v3", "v2", "v1", "v0"]
    picture = text(browser, "#chain svg")
    for version, row in zip(reversed(data.versions), versions, strict=True):
        assert row[4] == str(version.dim)
        if version.step is not None:
            assert row[7] == written(version.step.error)
            assert row[9] == written(version.step.amplification)
            assert written(version.step.error) in picture
    for name in ("v0", "ads ✕", "feed", "12 dims"):
        assert name in picture
    certificate = rows(browser, "certificate")
    assert [r[0] for r in certificate] == ["v2", "v1", "v0"]
    past = data.versions[0].past
    assert past is not None
    figures = (past.error, past.cosine, past.measured, past.estimate, past.bound)
    error, cosine, measured, estimate, bound = map(written, figures)
    counted = [str(past.unseen), error, cosine, str(past.canaries), measured]
    assert certificate[2][1:8] == [*counted, estimate, bound]
    assert certificate[2][8] == written(past.amplification)
    assert rows(browser, "alignment")[2] == ["v0", error, measured, estimate, bound]
    ads, feed = rows(browser, "consumers")
    assert ads[:3] == ["ads", "v0", "✕ past the limit"]
    assert ads[4:7] == ["0.713", "at least 0.800", "v2: 0.870, v3: 0.713"]
    assert feed[:2] == ["feed", "stable (v3)"]
    assert rows(browser, "traffic") == [
        ["ads", "v0", "1,200", "0", "90.0"],
        ["(no token)", "not known", "345", "▲ 7", "not known"],
    ]
    assert "2.25 ms" in text(browser, "#latency")
    assert rows(browser, "drift") == [
        ["object", "v3", "0.250", "0.100", "5,000", "▲ past the limit"]
    ]
    assert rows(browser, "rows") == [["object", "v2", "11"], ["object", "v3", "20"]]
    assert rows(browser, "backfill") == [
        ["object", "v3", "under way", "9 of 20 (45 %)", "600", "1 s"]
    ]


def test_it_asks_only_its_own_service_and_logs_no_error(browser: Browser, service: Service) -> None:
    show(browser, service)
    refresh(browser)
    browser.wait(lambda: len(service.asked) >= 2)
    browser.listen()
    assert browser.console == []
    asked = {u for u in browser.requests if not u.startswith(("data:", "about:", "chrome:"))}
    assert service.url + "v1/dashboard" in asked
    assert service.url + "dashboard/dashboard.js" in asked
    assert {u for u in asked if not u.startswith(service.url)} == set()


def test_requests_are_shown_at_once(
    browser: Browser, service: Service, data: DashboardData
) -> None:
    """Not from the second look on: the service has counted those that came before."""
    rates = [Rate(ago=5, per_minute=36), Rate(ago=0, per_minute=24)]
    traffic = [
        Traffic(consumer="ads", version=0, requests=4, errors=0, per_minute=4.0),
        Traffic(consumer="feed", version=3, requests=1, errors=0, per_minute=1.0),
    ]
    live = data.live.model_copy(update={"traffic": traffic, "rates": rates})
    service.data = data.model_copy(update={"live": live})
    show(browser, service)
    facts = browser.run("return document.getElementById('facts').innerText")
    assert "5.00" in facts
    assert rows(browser, "rate-table") == [["0", "24.0"], ["5", "36.0"]]
    assert "Now 24.0" in text(browser, "#rates desc")
    # A service that has only begun.
    live = live.model_copy(update={"rates": rates[1:], "traffic": []})
    service.data = data.model_copy(update={"live": live})
    show(browser, service)
    assert browser.run("return document.querySelector('#rates .line').getTotalLength()") > 0
    browser.listen()
    assert browser.console == []


def test_one_version_and_nobody(browser: Browser, service: Service, data: DashboardData) -> None:
    only = [data.versions[0].model_copy(update={"past": None, "quality": {}})]
    service.data = data.model_copy(
        update={"versions": only, "newest": 0, "production": 0, "consumers": [], "live": Live()}
    )
    show(browser, service)
    assert "no past version yet" in text(browser, "#errors")
    assert "not measured" in text(browser, "#quality")
    assert "Nobody is pinned" in text(browser, "#consumers")
    for name in ("traffic", "drift", "rows", "backfill"):
        assert rows(browser, name) == [["Not known."]]
    browser.listen()
    assert browser.console == []


def test_retired_withdrawn_and_labelled(
    browser: Browser, service: Service, data: DashboardData
) -> None:
    changes: list[dict[str, Any]] = [
        {"retired": True, "past": None},
        {"labels": ["stable"]},
        {},
        {"withdrawn": "the wrong day", "encoder": None, "step": StepFacts(kind="identity")},
    ]
    versions = [v.model_copy(update=c) for v, c in zip(data.versions, changes, strict=True)]
    service.data = data.model_copy(update={"versions": versions, "newest": 2, "production": 1})
    show(browser, service)
    states = [r[1] for r in reversed(rows(browser, "versions"))]
    assert states == ["retired", "production", "newest", "withdrawn (the wrong day)"]
    picture = browser.run(
        "return [...document.querySelectorAll('#chain svg text')].map((t) => t.textContent)"
    )
    for word in ("retired", "production", "newest", "withdrawn", "stable", "identity"):
        assert picture.count(word) == 1, word
    assert "not known" not in picture
    assert "labelled stable" in text(browser, "#chain desc")
    assert [r[0] for r in rows(browser, "certificate")] == ["v2", "v1"]


def test_the_metric_can_be_chosen(browser: Browser, service: Service) -> None:
    show(browser, service)
    assert text(browser, "#quality title") == "recall@20 by version"
    assert rows(browser, "qualities")[0] == ["v3", "0.340", "0.120", "0.330"]
    browser.run(
        "const s = document.getElementById('metric'); s.value = 'ndcg@20';"
        "s.dispatchEvent(new Event('change'))"
    )
    assert text(browser, "#quality title") == "ndcg@20 by version"
    assert rows(browser, "qualities")[0] == ["v3", "0.210", "0.0800", "0.220"]
