"""The dashboard in a real browser: what it shows, to whom, and what harms nobody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import ENTER, TAB, Browser, missing, open_browser
from tests.support.dashboards import Service, make_lineage, serve
from tests.support.running_service import server

from evergram.lineage.consumers import ConsumerRegistry
from evergram.retrieval.backfill import BackfillProgress
from evergram.retrieval.reader import Reader
from evergram.serving.app import create_app
from evergram.serving.dashboard import (
    ConsumerFacts,
    DashboardData,
    Health,
    Live,
    ProbeFacts,
    StepFacts,
    Traffic,
    dashboard_data,
    health,
)
from evergram.serving.service import Service as EvergramService
from evergram.serving.settings import ServiceSettings

PROBE = ProbeFacts(
    metric="auc", limit=0.8, less_is_better=False, values={2: 0.87, 3: 0.7125}, last=0.7125,
    holds=False,
)  # fmt: skip
CONSUMERS = [
    ConsumerFacts(name="ads", pinned="v0", version=0, since="2026-02-01", probe=PROBE),
    ConsumerFacts(name="feed", pinned="stable", version=3, since="2026-03-01"),
]
FILLED = BackfillProgress(side="object", version=3, state="under way", done=9, total=20)
LIVE = Live(
    started="2026-11-21T08:00:00+00:00",
    traffic=[
        Traffic(consumer="ads", version=0, requests=1200, errors=0),
        Traffic(consumer="", version=None, requests=345, errors=7),
    ],
    latency_ms={"p50": 2.25, "p99": 9.5},
    rows={"object": {2: 11, 3: 20}},
    backfill=[FILLED],
)
SHOWN = "!document.getElementById('board').hidden"


def show(browser: Browser, service: Service) -> None:
    browser.open(service.url)
    browser.wait(SHOWN)


def refresh(browser: Browser) -> None:
    """Let the page refresh, as when somebody comes back to the tab."""
    browser.run("document.dispatchEvent(new Event('visibilitychange'))")


def text(browser: Browser, selector: str) -> str:
    text: str = browser.run("return document.querySelector(arguments[0]).textContent", selector)
    return text


def rows(browser: Browser, table: str) -> list[list[str]]:
    rows: list[list[str]] = browser.run(
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
        ".map((r) => [...r.cells].map((c) => c.textContent))",
        table,
    )
    return rows


def check_console(browser: Browser, *expected: str) -> None:
    """Fail where the page has logged an error, but for those with one of these words."""
    browser.listen()
    assert not [line for line in browser.console if not any(e in line for e in expected)]


def written(value: float | None) -> str:
    assert value is not None
    return f"{value:#.3g}"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> DashboardData:
    lineage = make_lineage(tmp_path_factory.mktemp("page") / "lineage")
    return dashboard_data(lineage, [], LIVE).model_copy(update={"consumers": CONSUMERS})


@pytest.fixture(scope="session")
def running(data: DashboardData) -> Iterator[Service]:
    with serve(data) as dashboard:
        yield dashboard


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def service(running: Service, data: DashboardData) -> Service:
    running.data, running.token, running.status = data, None, 200
    running.asked.clear()
    return running


@pytest.fixture
def browser(tab: Browser, service: Service) -> Browser:
    return cleared(tab, service.url)


def cleared(tab: Browser, url: str) -> Browser:
    tab.open(url)
    tab.run("sessionStorage.clear(); localStorage.clear()")
    tab.forget()
    tab.size(1280)
    tab.scheme("light")
    return tab


def test_it_shows_what_the_service_says(
    browser: Browser, service: Service, data: DashboardData
) -> None:
    show(browser, service)
    assert text(browser, "h1") == "films"
    assert text(browser, "#summary") == "4 versions, 2 consumers"
    assert "1 probe fails" in browser.run("return document.getElementById('facts').innerText")
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
    amplification = written(past.amplification)
    assert certificate[2][1:9] == [*counted, estimate, bound, amplification]
    assert rows(browser, "alignment")[2] == ["v0", error, measured, estimate, bound]
    ads, feed = rows(browser, "consumers")
    assert ads[:3] == ["ads", "v0", "✕ past the limit"]
    assert ads[4:7] == ["0.713", "at least 0.800", "v2: 0.870, v3: 0.713"]
    assert feed[:2] == ["feed", "stable (v3)"]
    tables = {
        "traffic": [
            ["ads", "v0", "1,200", "0"],
            ["(no token)", "not known", "345", "▲ 7"],
        ],
        "rows": [["object", "v2", "11"], ["object", "v3", "20"]],
        "backfill": [["object", "v3", "under way", "9 of 20 (45 %)"]],
    }
    assert {name: rows(browser, name) for name in tables} == tables
    assert "2.25 ms" in text(browser, "#latency")
    # It asks only its own service, and logs no error.
    refresh(browser)
    browser.wait(lambda: len(service.asked) >= 2)
    check_console(browser)
    asked = {u for u in browser.requests if not u.startswith(("data:", "about:", "chrome:"))}
    assert {service.url + part for part in ("v1/dashboard", "dashboard/dashboard.js")} <= asked
    assert {u for u in asked if not u.startswith(service.url)} == set()
    # The metric can be chosen.
    assert text(browser, "#quality title") == "recall@20 by version"
    assert rows(browser, "qualities")[0] == ["v3", "0.340", "0.120", "0.330"]
    browser.run(
        "const s = document.getElementById('metric'); s.value = 'ndcg@20';"
        "s.dispatchEvent(new Event('change'))"
    )
    assert text(browser, "#quality title") == "ndcg@20 by version"
    assert rows(browser, "qualities")[0] == ["v3", "0.210", "0.0800", "0.220"]


def test_one_version_and_nobody_and_retired_withdrawn_and_labelled(
    browser: Browser, service: Service, data: DashboardData
) -> None:
    only = [data.versions[0].model_copy(update={"past": None, "quality": {}})]
    alone = {"versions": only, "newest": 0, "production": 0, "consumers": [], "live": Live()}
    service.data = data.model_copy(update=alone)
    show(browser, service)
    for part, words in (
        ("errors", "no past version yet"),
        ("quality", "not measured"),
        ("consumers", "Nobody is pinned"),
    ):
        assert words in text(browser, f"#{part}")
    for name, words in (
        ("traffic", "No requests yet."),
        ("rows", "Not known."),
        ("backfill", "No backfill is running."),
    ):
        assert rows(browser, name) == [[words]]
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
    assert "labelled stable" in text(browser, "#chain desc")
    assert [r[0] for r in rows(browser, "certificate")] == ["v2", "v1"]
    check_console(browser)


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


def test_names_are_shown_as_text(browser: Browser, service: Service, data: DashboardData) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\">"
    probe = PROBE.model_copy(update={"metric": evil, "values": {}, "failed": True})
    named = {"labels": [evil], "encoder": evil, "quality": {"model": {evil: 0.5}}}
    versions = [v.model_copy(update=named) for v in data.versions]
    versions[1] = versions[1].model_copy(update={"withdrawn": evil})
    live = Live(
        started=evil,
        traffic=[Traffic(consumer=evil, version=0, requests=1, errors=0)],
        rows={evil: {0: 1}},
        backfill=[BackfillProgress(side=evil, version=0, done=0, total=1, state=evil)],
    )
    consumer = ConsumerFacts(name=evil, pinned=evil, version=0, since=evil, probe=probe)
    facts = {"lineage": evil, "versions": versions, "consumers": [consumer], "live": live}
    service.data = data.model_copy(update=facts)
    show(browser, service)
    assert text(browser, "h1") == evil
    assert rows(browser, "consumers")[0][0] == evil
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.title") == f"{evil} · Evergram"
    check_console(browser)
    assert not [u for u in browser.requests if u.endswith("/x")]


OPEN_ALL = "document.querySelectorAll('details').forEach((d) => { d.open = true; })"
FOCUS = """
const e = document.activeElement, s = getComputedStyle(e), box = e.getBoundingClientRect();
return [e.className || e.id || e.textContent, e.tagName, s.outlineStyle !== "none"
        && parseFloat(s.outlineWidth) >= 2 && box.bottom > 0 && box.top < innerHeight];
"""
WANTED = """
return [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')]
    .filter((e) => e.checkVisibility()).length
"""


def test_the_keyboard_reaches_everything_and_no_width_scrolls_sideways(
    browser: Browser, service: Service
) -> None:
    show(browser, service)
    seen = []
    for _ in range(browser.run(WANTED)):
        browser.keys(TAB)
        name, tag, visible = browser.run(FOCUS)
        assert visible, name
        seen.append((name, tag))
        if tag == "SUMMARY":
            browser.keys(ENTER)
            assert browser.run("return document.activeElement.parentElement.open") is True
    assert seen[0] == ("skip", "A")
    browser.run("document.querySelector('.skip').focus()")
    browser.keys(ENTER)
    assert browser.run("return document.activeElement.id") == "main"
    for width in (1280, 320):
        browser.size(width)
        assert browser.run("return document.documentElement.scrollWidth") <= width


def test_what_a_screen_reader_is_given(browser: Browser, service: Service) -> None:
    show(browser, service)
    browser.wait("document.querySelectorAll('svg[role=img]').length === 3")
    browser.run(OPEN_ALL)
    browser.devtools("Accessibility.enable")
    by_role: dict[str, list[Any]] = defaultdict(list)
    for node in browser.devtools("Accessibility.getFullAXTree")["nodes"]:
        if not node["ignored"]:
            by_role[node["role"]["value"]].append(node)
    for roles in (("image", "img"), ("table",), ("region",), ("DisclosureTriangle",)):
        names = [node["name"]["value"] for role in roles for node in by_role[role]]
        assert all(names)
        assert len(set(names)) == len(names)
    properties = [p for node in by_role["heading"] for p in node["properties"]]
    levels = [p["value"]["value"] for p in properties if p["name"] == "level"]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert {len(by_role[of]) for of in ("banner", "main", "contentinfo", "status")} == {1}
    # Cells say what they are of.
    assert browser.run("return [...document.querySelectorAll('th')].every((th) => th.scope)")
    assert browser.run("return document.documentElement.lang") == "en"


def test_the_line_and_its_reasons(browser: Browser, service: Service, data: DashboardData) -> None:
    unprobed = data.consumers[0].model_copy(update={"name": "mail", "probe": None})
    judged = health(data.versions, [*data.consumers, unprobed], data.newest, LIVE)
    service.data = data.model_copy(update={"health": judged})
    show(browser, service)
    assert text(browser, "#verdict") == "✕ Not well: 1 broken, 1 thing not measured"
    shown = browser.run(
        "return [...document.querySelectorAll('#reasons li')].map((i) => i.textContent)"
    )
    assert [s[0] for s in shown] == ["✕", "?"]
    assert all(r.sentence in s for r, s in zip(judged.reasons, shown, strict=True))
    assert browser.run(
        "return [...document.querySelectorAll('#reasons a')]"
        ".every((a) => document.querySelector(a.getAttribute('href')).tagName === 'SECTION')"
    )
    service.data = data.model_copy(update={"health": Health(state="well", reasons=[])})
    refresh(browser)
    browser.wait("document.getElementById('verdict').textContent === '✓ All is well'")
    # What was well need not be any more; what is shown stays.
    service.status = 503
    refresh(browser)
    browser.wait("document.getElementById('verdict').textContent.startsWith('? Not known')")
    browser.wait("document.getElementById('status').textContent.includes('error 503')")
    assert browser.run(f"return {SHOWN}")
    service.status, service.data = 200, data.model_copy(update={"lineage": "books"})
    refresh(browser)
    browser.wait("document.getElementById('status').textContent === ''")
    assert text(browser, "h1") == "books"


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """The folder of a lineage, the token of a consumer of version 1, and a service's address."""
    lineage = make_lineage(tmp_path_factory.mktemp("search") / "lineage")
    consumers = ConsumerRegistry.open(lineage.path)
    consumers.add("ads", "v1", lineage.resolve)
    token = consumers.issue_token("ads")
    settings = ServiceSettings(poll=0.05, admin_token="the-admin")
    with server(create_app(EvergramService(lineage.path), settings)) as url:
        yield lineage.path, token, f"{url}/"


@pytest.fixture
def page(tab: Browser, films: tuple[Path, str, str]) -> Browser:
    cleared(tab, films[2]).open(f"{films[2]}dashboard/search.html")
    return tab


def enter(page: Browser, token: str) -> None:
    page.wait("!document.getElementById('enter').hidden")
    fill = "document.getElementById('token').value = arguments[0];"
    page.run(f"{fill} document.getElementById('form').requestSubmit()", token)


def search(page: Browser, id: str) -> str:
    page.wait("!document.getElementById('board').hidden")
    fill = (
        "const field = (name) => document.getElementById(name); field('id').value = arguments[0];"
    )
    page.run(f"{fill} field('k').value = 5; field('query').requestSubmit()", id)
    page.wait("!['', 'Searching…'].includes(document.getElementById('said').textContent)")
    return text(page, "#said")


def test_the_hits_of_both_versions_and_their_overlap(
    page: Browser, films: tuple[Path, str, str]
) -> None:
    enter(page, "the-admin")
    said = search(page, "object 3")
    found = {}
    with closing(Reader.open(films[0])) as reader:
        ids = reader.store("object").as_ids(["object 3"])
        for version in (0, 3):
            queries = reader.embed(ids, version).vectors
            hits = reader.search(queries, 6, version)[0].ids.to_pylist()
            found[version] = [hit for hit in hits if hit != "object 3"][:5]
    shared = set(found[0]) & set(found[3])
    for table, version, other in (("hits-a", 0, 3), ("hits-b", 3, 0)):
        shown = rows(page, table)
        assert [row[1] for row in shown] == found[version]
        assert {row[4] for row in shown} == {"v3"}
        for row in shown:
            rank = found[other].index(row[1]) + 1 if row[1] in shared else None
            assert row[3] == (f"✓ rank {rank}" if rank else "–")
    assert f"Of 5 hits, {len(shared)} are the same at v0 and v3." in said
    page.run("document.querySelector('#hits-a tbody button').click()")
    page.wait(f"document.getElementById('said').textContent.includes('of {found[0][0]}:')")
    assert search(page, "nobody").count("is not stored") == 1
    assert page.run("return document.getElementById('found').hidden")
    check_console(page, "401", "404")


def test_a_consumer_sees_only_what_it_may_read(page: Browser, films: tuple[Path, str, str]) -> None:
    enter(page, "wrong")
    page.wait("document.getElementById('refused').textContent")
    enter(page, films[1])
    page.wait("!document.getElementById('board').hidden")
    listed = "return [...document.querySelectorAll('#a option, #b option')].map((o) => o.value)"
    assert page.run(listed) == ["1", "1"]
    assert "hits, 5 are the same" in search(page, "object 3")
    # A version that is not offered is refused by the service, and nothing of it is shown.
    page.run(
        "const a = document.getElementById('a'); a.options[0].value = '0'; a.selectedIndex = 0;"
        "document.getElementById('said').textContent = ''"
    )
    assert "may not read version" in search(page, "object 3")
    assert page.run("return document.getElementById('found').hidden")
