"""Whether all is well, a backfill of another process, and the switch of colours."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.browser import Browser
from tests.support.dashboards import Service
from tests.support.page_views import LIVE, refresh, rows, show, text

from evergram.retrieval.backfilling.backfill_progress import backfill_progress
from evergram.serving.dashboard.health import health
from evergram.serving.dashboard.schemas import BackfillFacts, DashboardData, Health


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
    # What was well need not be any more.
    service.status = 503
    refresh(browser)
    browser.wait("document.getElementById('verdict').textContent.startsWith('? Not known')")


WRITE = """
import sys
from pathlib import Path
from evergram.retrieval.backfilling.backfill_state import BackfillPlan, BackfillState
folder = Path(sys.argv[1]) / "backfills" / "object-0a"
folder.mkdir(parents=True, exist_ok=True)
state = BackfillState(folder, 0o600)
if not state.is_planned:
    state.write_plan(BackfillPlan("object", "snapshot:x", 3, "sha256:a", 10, 20, 0))
state.begin_run(int(sys.argv[2]))
state.write_progress("under way", int(sys.argv[3]))
"""


def test_a_backfill_of_another_process_moves_and_stalls(
    browser: Browser, service: Service, data: DashboardData, tmp_path: Path
) -> None:
    def look(now: float) -> None:
        facts = [
            BackfillFacts(
                side=b.side, version=b.version, done=b.done, total=b.total, state=b.state,
                per_minute=None if b.rate is None else b.rate * 60, left=b.left, idle=b.idle,
            )
            for b in backfill_progress(tmp_path, now)
        ]  # fmt: skip
        live = data.live.model_copy(update={"backfill": facts})
        service.data = data.model_copy(update={"live": live})

    for before, done in ((0, 5), (5, 15)):
        subprocess.run([sys.executable, "-c", WRITE, tmp_path, str(before), str(done)], check=True)
        look(time.time())
        show(browser, service)
        ((side, version, state, said, rate, left),) = rows(browser, "backfill")
        assert (side, version, state) == ("object", "v3", "under way")
        assert said == f"{done} of 20 ({5 * done} %)"
        assert rate != "not known"
        assert left.endswith(" s")
    look(time.time() + 120)
    refresh(browser)
    browser.wait("document.getElementById('backfill').textContent.includes('stalled or died')")


@pytest.mark.parametrize("chosen", ["light", "dark"])
def test_the_chosen_colours_are_kept(browser: Browser, service: Service, chosen: str) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    colours = {}
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        show(browser, service)
        browser.run("localStorage.clear()")
        browser.open(service.url)
        colours[scheme] = browser.run(ground)
    assert colours["light"] != colours["dark"]
    browser.scheme("dark" if chosen == "light" else "light")
    browser.run(
        "const s = document.getElementById('scheme'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('change'))",
        chosen,
    )
    assert browser.run(ground) == colours[chosen]
    show(browser, service)
    assert browser.run(ground) == colours[chosen]
    assert browser.run("return document.getElementById('scheme').value") == chosen
    browser.run("localStorage.clear()")
