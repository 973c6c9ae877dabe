"""The dashboard with strangers, failures, and names that are meant to do harm."""

from __future__ import annotations

import time

import pytest
from tests.support.browser import ENTER, Browser
from tests.support.dashboards import Service
from tests.support.page_views import SHOWN, refresh, rows, show, text

from evergram.serving.dashboard.schemas import (
    BackfillFacts,
    ConsumerFacts,
    DashboardData,
    DriftFacts,
    Live,
    ProbeFacts,
    Traffic,
)


def test_it_asks_for_a_token(browser: Browser, service: Service) -> None:
    service.token = "secret"
    browser.open(service.url)
    browser.wait("!document.getElementById('enter').hidden")
    assert not browser.run(f"return {SHOWN}")
    assert browser.run("return document.activeElement.id") == "token"
    browser.keys(*"wrong", ENTER)
    browser.wait("document.getElementById('refused').textContent.includes('does not know')")
    assert browser.run("return sessionStorage.length") == 0
    browser.keys(*"secret", ENTER)
    browser.wait(SHOWN)
    browser.wait("document.activeElement.id === 'main'")
    assert browser.run("return document.getElementById('enter').hidden")
    assert "secret" not in browser.run("return location.href + document.documentElement.innerHTML")
    assert browser.run("return [localStorage.length, document.cookie]") == [0, ""]
    # The tab remembers it until it is told to forget.
    show(browser, service)
    browser.run("document.getElementById('forget').click()")
    browser.wait("!document.getElementById('enter').hidden")
    assert browser.run("return sessionStorage.length") == 0
    assert text(browser, "h1") == "Dashboard"


def test_a_failed_refresh_is_said_and_recovers(
    browser: Browser, service: Service, data: DashboardData
) -> None:
    show(browser, service)
    assert text(browser, "#status") == ""
    service.status = 503
    refresh(browser)
    browser.wait("document.getElementById('status').textContent.includes('error 503')")
    assert browser.run("return document.getElementById('status').ariaLive") == "polite"
    assert browser.run(f"return {SHOWN}")
    service.status = 200
    service.data = data.model_copy(update={"lineage": "books"})
    refresh(browser)
    browser.wait("document.getElementById('status').textContent === ''")
    assert text(browser, "h1") == "books"


def test_names_are_shown_as_text(browser: Browser, service: Service, data: DashboardData) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\">"
    probe = ProbeFacts(
        metric=evil, limit=None, less_is_better=False, values={}, last=None, holds=False,
        failed=True,
    )  # fmt: skip
    consumer = ConsumerFacts(name=evil, pinned=evil, version=0, since=evil, probe=probe)
    traffic = Traffic(consumer=evil, version=0, requests=1, errors=0)
    service.data = data.model_copy(
        update={
            "lineage": evil,
            "versions": [
                v.model_copy(
                    update={
                        "labels": [evil],
                        "encoder": evil,
                        "withdrawn": evil if v.version == 1 else None,
                        "quality": {"model": {evil: 0.5}},
                    }
                )
                for v in data.versions
            ],
            "consumers": [consumer],
            "live": Live(
                started=evil,
                traffic=[traffic],
                drift=[DriftFacts(side=evil, relative=0.1)],
                rows={evil: {0: 1}},
                backfill=[BackfillFacts(side=evil, version=0, done=0, total=1, state=evil)],
            ),
        }
    )
    show(browser, service)
    assert text(browser, "h1") == evil
    assert rows(browser, "consumers")[0][0] == evil
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.title") == f"{evil} · Evergram"
    browser.listen()
    assert browser.console == []
    assert not [u for u in browser.requests if u.endswith("/x")]


@pytest.mark.long
def test_it_asks_every_two_seconds_while_it_is_seen(browser: Browser, service: Service) -> None:
    show(browser, service)
    first, number = service.asked[-1], len(service.asked)
    browser.wait(lambda: len(service.asked) > number, 60)
    assert service.asked[number] - first > 1.5
    browser.run("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    # What was under way then may still be asked.
    time.sleep(5)
    before = len(service.asked)
    time.sleep(5)
    assert len(service.asked) == before
    browser.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    browser.wait(lambda: len(service.asked) > before, 60)
