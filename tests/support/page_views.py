"""Facts that the page shows, and views of it."""

from __future__ import annotations

from tests.support.browser import Browser
from tests.support.dashboards import Service

from evergram.serving.dashboard.schemas import (
    BackfillFacts,
    ConsumerFacts,
    DriftFacts,
    Live,
    ProbeFacts,
    Traffic,
)

LIVE = Live(
    started="2026-11-21T08:00:00+00:00",
    traffic=[
        Traffic(consumer="ads", version=0, requests=1200, errors=0, per_minute=90.0),
        Traffic(consumer="", version=None, requests=345, errors=7),
    ],
    latency_ms={"p50": 2.25, "p99": 9.5},
    drift=[
        DriftFacts(side="object", version=3, relative=0.25, vectors=5000, limit=0.1),
    ],
    rows={"object": {2: 11, 3: 20}},
    backfill=[
        BackfillFacts(
            side="object",
            version=3,
            done=9,
            total=20,
            state="under way",
            per_minute=600.0,
            left=1.1,
        )
    ],
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


def written(value: float | None) -> str:
    assert value is not None
    return f"{value:#.3g}"
