"""The dashboard in a real browser: what it shows, how it is reached, what it does in trouble."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.serving.browser import ENTER, TAB, Browser, missing, open_browser
from tests.serving.dashboards import Service, make_lineage, serve

from evergram.serving.dashboard_data import dashboard_data
from evergram.serving.dashboard_facts import (
    Backfill,
    ConsumerFacts,
    DashboardData,
    Drift,
    Live,
    ProbeFacts,
    StepFacts,
    Traffic,
)

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

LIVE = Live(
    started="2026-11-21T08:00:00+00:00",
    traffic=[
        Traffic(consumer="ads", version=0, requests=1200, errors=0, per_minute=90.0),
        Traffic(consumer="", version=None, requests=345, errors=7),
    ],
    latency_ms={"p50": 2.25, "p99": 9.5},
    drift=[
        Drift(side="object", version=3, relative=0.25, vectors=5000, limit=0.1),
    ],
    rows={"object": {2: 11, 3: 20}},
    backfill=[Backfill(side="object", version=3, done=9, total=20, state="running")],
)
CONSUMERS = [
    ConsumerFacts(
        name="ads",
        pinned="v0",
        version=0,
        since="2026-02-01",
        probe=ProbeFacts(
            metric="auc", limit=0.8, less_is_better=False, values={2: 0.87, 3: 0.7125},
            last=0.7125, holds=False,
        ),
    ),
    ConsumerFacts(name="feed", pinned="stable", version=3, since="2026-03-01"),
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DashboardData:
    lineage = make_lineage(tmp_path_factory.mktemp("page") / "lineage")
    return dashboard_data(lineage, [], LIVE).model_copy(update={"consumers": CONSUMERS})


@pytest.fixture(scope="module")
def running(data: DashboardData) -> Iterator[Service]:
    with serve(data) as found:
        yield found


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


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


SHOWN = "!document.getElementById('board').hidden"


def show(browser: Browser, service: Service) -> None:
    browser.open(service.url)
    browser.wait(SHOWN)


def refresh(browser: Browser) -> None:
    """As when somebody comes back to the tab."""
    browser.run("document.dispatchEvent(new Event('visibilitychange'))")


def text(browser: Browser, selector: str) -> str:
    found: str = browser.run("return document.querySelector(arguments[0]).textContent", selector)
    return found


def rows(browser: Browser, table: str) -> list[list[str]]:
    found: list[list[str]] = browser.run(
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
        ".map((r) => [...r.cells].map((c) => c.textContent))",
        table,
    )
    return found


def written(value: float | None) -> str:
    assert value is not None
    return f"{value:#.3g}"


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
    assert certificate[2][1:7] == [
        "20",
        *map(written, (past.error, past.cosine, past.estimate, past.bound, past.amplification)),
    ]
    assert rows(browser, "alignment")[2] == ["v0", *certificate[2][2:3], *certificate[2][4:6]]
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
    assert rows(browser, "backfill") == [["object", "v3", "running", "9 of 20"]]


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


@pytest.mark.parametrize("width", [1280, 375, 320])
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
    assert wanted >= 12
    seen = []
    for _ in range(wanted):
        browser.keys(TAB)
        name, tag, style, width, visible = browser.run(FOCUS)
        assert style != "none", name
        assert width >= 2, name
        assert visible, name
        seen.append((name, tag))
        if tag == "SUMMARY":
            open_now = "return document.activeElement.parentElement.open"
            browser.keys(ENTER)
            assert browser.run(open_now) is True
            browser.keys(ENTER)
            assert browser.run(open_now) is False
    assert seen[0] == ("skip", "A")
    assert [tag for _, tag in seen].count("SUMMARY") == 4
    assert {"chain", "metric"} <= {name for name, _ in seen}


def test_the_skip_link_leads_to_the_content(browser: Browser, service: Service) -> None:
    show(browser, service)
    browser.keys(TAB, ENTER)
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
    found = accessible(browser)
    by_role: dict[str, list[dict[str, Any]]] = {}
    for node in found:
        by_role.setdefault(node["role"], []).append(node)
    images = [n["name"] for role in ("image", "img") for n in by_role.get(role, [])]
    assert len(images) == 4
    tables = [n["name"] for n in by_role["table"]]
    assert len(tables) == 10
    regions = [n["name"] for n in by_role["region"]]
    for names in (images, tables, regions, [n["name"] for n in by_role["DisclosureTriangle"]]):
        assert all(names)
        assert len(set(names)) == len(names)
    levels = [n["level"] for n in by_role["heading"]]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for landmark in ("banner", "main", "contentinfo", "status"):
        assert len(by_role[landmark]) == 1, landmark
    # Cells say what they are of.
    scopes = "return [...document.querySelectorAll('th')].every((th) => th.scope)"
    assert browser.run(scopes)
    assert browser.run("return document.documentElement.lang") == "en"
    described = browser.run(
        "return [...document.querySelectorAll('svg[role=img]')]"
        ".map((s) => document.getElementById(s.getAttribute('aria-describedby')).textContent)"
    )
    assert all(len(d) > 20 for d in described)


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
const found = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || !e.checkVisibility() || e.matches("title, desc, option, script, noscript")) continue;
  const style = getComputedStyle(e);
  const front = colour(e instanceof SVGElement ? style.fill : style.color);
  const [a, b] = [light(front), light(behind(e))].sort((p, q) => q - p);
  const name = `${e.tagName}.${e.getAttribute("class") ?? ""} ${e.textContent.slice(0, 30)}`;
  found.push([(a + 0.05) / (b + 0.05), name]);
}
return found;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser: Browser, service: Service, scheme: str) -> None:
    browser.scheme(scheme)
    show(browser, service)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    service.status = 500
    refresh(browser)
    browser.wait("document.getElementById('status').textContent")
    found = browser.run(CONTRAST)
    assert len(found) > 150
    assert min(found)[0] >= 4.5, min(found)
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(", "))) < 384) == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_can_be_read(browser: Browser, service: Service, scheme: str) -> None:
    service.token = "secret"
    browser.scheme(scheme)
    browser.open(service.url)
    browser.wait("!document.getElementById('enter').hidden")
    found = browser.run(CONTRAST)
    assert len(found) >= 5
    assert min(found)[0] >= 4.5, min(found)


def test_nothing_moves_by_itself(browser: Browser, service: Service) -> None:
    """So there is nothing to leave out for those who want no motion."""
    show(browser, service)
    moving = (
        "return [...document.querySelectorAll('*')].map((e) => getComputedStyle(e))"
        ".some((s) => s.animationName !== 'none' || parseFloat(s.transitionDuration) > 0"
        " || s.scrollBehavior !== 'auto')"
    )
    assert not browser.run(moving)


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
                drift=[Drift(side=evil, relative=0.1)],
                rows={evil: {0: 1}},
                backfill=[Backfill(side=evil, version=0, done=0, total=1, state=evil)],
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
def test_it_asks_every_five_seconds_while_it_is_seen(browser: Browser, service: Service) -> None:
    show(browser, service)
    first, number = service.asked[-1], len(service.asked)
    browser.wait(lambda: len(service.asked) > number, 8)
    assert 4.5 < service.asked[number] - first < 8
    browser.run("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    time.sleep(6)
    before = len(service.asked)
    time.sleep(6)
    assert len(service.asked) == before
    browser.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    browser.wait(lambda: len(service.asked) == before + 1, 2)


def test_a_profile_is_the_tests_own(tab: Browser, tmp_path: Path) -> None:
    """And the picture is a PNG of the width that was asked for."""
    tab.size(375)
    tab.picture(tmp_path / "page.png")
    content = (tmp_path / "page.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(content[16:20], "big") == 375
