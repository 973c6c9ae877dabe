"""The dashboard in a real browser: what it shows, to whom, and what harms nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.support.browser import ENTER, TAB, Browser, missing, open_browser
from tests.support.dashboards import Service, make_lineage, serve
from tests.support.page_views import CONSUMERS, LIVE, SHOWN, refresh, rows, show, text, written

from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Reader
from evergram.serving.app import create_app
from evergram.serving.dashboard.data import dashboard_data
from evergram.serving.dashboard.health import health
from evergram.serving.dashboard.schemas import (
    BackfillFacts,
    ConsumerFacts,
    DashboardData,
    DriftFacts,
    Health,
    Live,
    ProbeFacts,
    StepFacts,
    Traffic,
)
from evergram.serving.service import Service as EvergramService
from evergram.serving.settings import ServiceSettings


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
    tab.open(service.url)
    tab.run("sessionStorage.clear()")
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


def test_names_are_shown_as_text(browser: Browser, service: Service, data: DashboardData) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\">"
    probe = ProbeFacts(
        metric=evil, limit=None, less_is_better=False, values={}, last=None, holds=False,
        failed=True,
    )  # fmt: skip
    consumer = ConsumerFacts(name=evil, pinned=evil, version=0, since=evil, probe=probe)
    traffic = Traffic(consumer=evil, version=0, requests=1, errors=0)
    named = {"labels": [evil], "encoder": evil, "quality": {"model": {evil: 0.5}}}
    versions = [v.model_copy(update=named) for v in data.versions]
    versions[1] = versions[1].model_copy(update={"withdrawn": evil})
    live = Live(
        started=evil,
        traffic=[traffic],
        drift=[DriftFacts(side=evil, relative=0.1)],
        rows={evil: {0: 1}},
        backfill=[BackfillFacts(side=evil, version=0, done=0, total=1, state=evil)],
    )
    service.data = data.model_copy(
        update={"lineage": evil, "versions": versions, "consumers": [consumer], "live": live}
    )
    show(browser, service)
    assert text(browser, "h1") == evil
    assert rows(browser, "consumers")[0][0] == evil
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.title") == f"{evil} · Evergram"
    browser.listen()
    assert browser.console == []
    assert not [u for u in browser.requests if u.endswith("/x")]


@pytest.mark.parametrize("width", [1280, 320])
def test_no_width_scrolls_the_page_sideways(
    browser: Browser, service: Service, data: DashboardData, width: int
) -> None:
    long = [v.model_copy(update={"version": n}) for n in range(30) for v in data.versions[1:2]]
    name = "a-consumer-with-quite-a-long-name-that-has-no-end-and-no-place-to-break-it-anywhere"
    many = [c.model_copy(update={"name": name}) for c in CONSUMERS for _ in range(4)]
    service.data = data.model_copy(update={"versions": long, "newest": 29, "consumers": many})
    browser.size(width)
    show(browser, service)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    # What does not fit scrolls in its own place, and the newest version is seen first.
    assert browser.run("const c = document.getElementById('chain'); return c.scrollLeft") > 0
    assert browser.run(
        "const c = document.getElementById('chain');"
        "return c.scrollLeft + c.clientWidth >= c.scrollWidth - 1"
    )


FOCUS = """
const e = document.activeElement, s = getComputedStyle(e), box = e.getBoundingClientRect();
return [e.id || e.className || e.textContent, e.tagName, s.outlineStyle, parseFloat(s.outlineWidth),
        box.bottom > 0 && box.top < innerHeight && box.width > 0];
"""


def test_the_keyboard_reaches_everything(browser: Browser, service: Service) -> None:
    show(browser, service)
    wanted = browser.run(
        "return [...document.querySelectorAll("
        "'a[href], button, input, select, summary, [tabindex=\"0\"]')]"
        ".filter((e) => e.checkVisibility()).length"
    )
    seen = []
    for _ in range(wanted):
        browser.keys(TAB)
        name, tag, style, width, visible = browser.run(FOCUS)
        assert style != "none", name
        assert width >= 2, name
        assert visible, name
        seen.append((name, tag))
        if tag == "SUMMARY":
            browser.keys(ENTER)
            assert browser.run("return document.activeElement.parentElement.open") is True
    assert seen[0] == ("skip", "A")
    browser.run("document.querySelector('.skip').focus()")
    browser.keys(ENTER)
    assert browser.run("return document.activeElement.id") == "main"


def accessible(browser: Browser) -> list[dict[str, Any]]:
    """What a screen reader is given: role, name, level."""
    browser.devtools("Accessibility.enable")
    nodes = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    return [
        {
            "role": n["role"]["value"],
            "name": n.get("name", {}).get("value", ""),
            "level": next(
                (p["value"]["value"] for p in n.get("properties", []) if p["name"] == "level"), None
            ),
        }
        for n in nodes
        if not n["ignored"]
    ]


def test_what_a_screen_reader_is_given(browser: Browser, service: Service) -> None:
    show(browser, service)
    refresh(browser)
    browser.wait("document.querySelectorAll('svg[role=img]').length === 4")
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    nodes = accessible(browser)
    by_role: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
        by_role.setdefault(node["role"], []).append(node)
    images = [n["name"] for role in ("image", "img") for n in by_role.get(role, [])]
    others = [[n["name"] for n in by_role[r]] for r in ("table", "region", "DisclosureTriangle")]
    for names in (images, *others):
        assert all(names)
        assert len(set(names)) == len(names)
    levels = [n["level"] for n in by_role["heading"]]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for landmark in ("banner", "main", "contentinfo", "status"):
        assert len(by_role[landmark]) == 1, landmark
    # Cells say what they are of.
    assert browser.run("return [...document.querySelectorAll('th')].every((th) => th.scope)")
    assert browser.run("return document.documentElement.lang") == "en"


# The colour of all text that is seen, over what lies behind it, by WCAG 2's formula.
CONTRAST = """
const light = ([r, g, b]) => {
  const part = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
};
const colour = (text) => {
  const n = (text.match(/[\\d.]+/g) ?? []).map(Number);
  return n.length === 3 ? [...n, 1] : n;
};
const solid = (c) => c.length === 4 && c[3] === 1;
const behind = (e) => {
  if (e instanceof SVGElement) {
    const box = e.getBBox(), x = box.x + box.width / 2, y = box.y + box.height / 2;
    const shapes = [...e.ownerSVGElement.querySelectorAll("rect, .flag")].filter((s) => {
      const b = s.getBBox();
      return b.x <= x && x <= b.x + b.width && b.y <= y && y <= b.y + b.height;
    }).map((s) => colour(getComputedStyle(s).fill)).filter(solid);
    if (shapes.length) return shapes.at(-1);
    e = e.ownerSVGElement.parentElement;
  }
  for (; e; e = e.parentElement) {
    const c = colour(getComputedStyle(e).backgroundColor);
    if (solid(c)) return c;
  }
  return [255, 255, 255, 1];
};
const contrasts = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || !e.checkVisibility() || e.matches("title, desc, option, script, noscript")) continue;
  const style = getComputedStyle(e);
  const front = colour(e instanceof SVGElement ? style.fill : style.color);
  const [a, b] = [light(front), light(behind(e))].sort((p, q) => q - p);
  const name = `${e.tagName}.${e.getAttribute("class") ?? ""} ${e.textContent.slice(0, 30)}`;
  contrasts.push([(a + 0.05) / (b + 0.05), name]);
}
return contrasts;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser: Browser, service: Service, scheme: str) -> None:
    browser.scheme(scheme)
    show(browser, service)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    service.status = 500
    refresh(browser)
    browser.wait("document.getElementById('status').textContent")
    contrasts = browser.run(CONTRAST)
    assert len(contrasts) > 150
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(", "))) < 384) == (scheme == "dark")
    service.token = "secret"
    browser.open(service.url)
    browser.wait("!document.getElementById('enter').hidden")
    contrasts += browser.run(CONTRAST)
    assert min(contrasts)[0] >= 4.5, min(contrasts)


def test_the_line_and_its_reasons(browser: Browser, service: Service, data: DashboardData) -> None:
    judged = health(data.versions, data.consumers, data.newest, LIVE)
    service.data = data.model_copy(update={"health": judged})
    show(browser, service)
    assert text(browser, "#verdict") == "✕ Not well: 2 broken, 2 things not measured"
    shown = browser.run(
        "return [...document.querySelectorAll('#reasons li')].map((i) => i.textContent)"
    )
    assert [s[0] for s in shown] == ["✕", "✕", "?", "?"]
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lineage(tmp_path_factory.mktemp("search") / "lineage").path


@pytest.fixture(scope="module")
def token(folder: Path) -> str:
    consumers = ConsumerRegistry.open(folder)
    consumers.add("ads", "v1", Lineage.open(folder).resolve)
    return consumers.issue_token("ads")


@pytest.fixture(scope="module")
def url(folder: Path, token: str) -> Iterator[str]:
    app = create_app(
        EvergramService.open(folder), ServiceSettings(poll=0.05, admin_token="the-admin")
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


@pytest.fixture
def page(tab: Browser, url: str) -> Browser:
    tab.open(url)
    tab.run("sessionStorage.clear(); localStorage.clear()")
    tab.forget()
    tab.size(1280)
    tab.scheme("light")
    tab.open(f"{url}dashboard/search.html")
    return tab


def enter(page: Browser, token: str) -> None:
    page.wait("!document.getElementById('enter').hidden")
    page.run(
        "document.getElementById('token').value = arguments[0];"
        "document.getElementById('form').requestSubmit()",
        token,
    )


def search(page: Browser, id: str, k: int = 5) -> str:
    page.wait("!document.getElementById('board').hidden")
    page.run(
        "document.getElementById('id').value = arguments[0];"
        "document.getElementById('k').value = arguments[1];"
        "document.getElementById('query').requestSubmit()",
        id,
        k,
    )
    page.wait("!['', 'Searching…'].includes(document.getElementById('said').textContent)")
    return text(page, "#said")


def test_the_hits_of_both_versions_and_their_overlap(page: Browser, folder: Path) -> None:
    enter(page, "the-admin")
    said = search(page, "object 3")
    found = {}
    with closing(Reader.open(folder)) as reader:
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
    page.listen()
    assert not [line for line in page.console if "401" not in line and "404" not in line]


def test_a_consumer_sees_only_what_it_may_read(page: Browser, token: str) -> None:
    enter(page, "wrong")
    page.wait("document.getElementById('refused').textContent")
    enter(page, token)
    page.wait("!document.getElementById('board').hidden")
    for name in ("a", "b"):
        options = page.run(
            "return [...document.getElementById(arguments[0]).options].map((o) => o.value)", name
        )
        assert options == ["1"]
    assert "hits, 5 are the same" in search(page, "object 3")
    # A version that is not offered is refused by the service, and nothing of it is shown.
    page.run(
        "const a = document.getElementById('a'); a.options[0].value = '0'; a.selectedIndex = 0"
    )
    page.run("document.getElementById('said').textContent = ''")
    assert "may not read version" in search(page, "object 3")
    assert page.run("return document.getElementById('found').hidden")
