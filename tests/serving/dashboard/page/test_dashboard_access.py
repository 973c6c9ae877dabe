"""The dashboard for every reader: any width, the keyboard, a screen reader, both schemes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.support.browser import ENTER, TAB, Browser
from tests.support.dashboards import Service
from tests.support.page_views import CONSUMERS, refresh, show

from evergram.serving.dashboard.schemas import (
    DashboardData,
)


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
    nodes = accessible(browser)
    by_role: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
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
    assert min(contrasts)[0] >= 4.5, min(contrasts)
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(", "))) < 384) == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_can_be_read(browser: Browser, service: Service, scheme: str) -> None:
    service.token = "secret"
    browser.scheme(scheme)
    browser.open(service.url)
    browser.wait("!document.getElementById('enter').hidden")
    contrasts = browser.run(CONTRAST)
    assert len(contrasts) >= 5
    assert min(contrasts)[0] >= 4.5, min(contrasts)


def test_nothing_moves_by_itself(browser: Browser, service: Service) -> None:
    """So there is nothing to leave out for those who want no motion."""
    show(browser, service)
    moving = (
        "return [...document.querySelectorAll('*')].map((e) => getComputedStyle(e))"
        ".some((s) => s.animationName !== 'none' || parseFloat(s.transitionDuration) > 0"
        " || s.scrollBehavior !== 'auto')"
    )
    assert not browser.run(moving)
