"""One search by id at two versions, side by side, in a real browser before the whole service."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import uvicorn
from tests.support.browser import ENTER, TAB, Browser
from tests.support.dashboards import make_lineage
from tests.support.page_views import rows, text

from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Reader
from evergram.serving.app import create_app
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lineage(tmp_path_factory.mktemp("search") / "lineage").path


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    app = create_app(Service.open(folder), ServiceSettings(poll=0.05, admin_token="the-admin"))
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
    # Ids can be taken from a list, and a hit can be searched for.
    offered = page.run("return [...document.querySelectorAll('#ids option')].map((o) => o.value)")
    assert set(offered) == {f"object {i}" for i in range(20)}
    page.run("document.querySelector('#hits-a tbody button').click()")
    page.wait(f"document.getElementById('said').textContent.includes('of {found[0][0]}:')")
    page.listen()
    assert not [line for line in page.console if "401" not in line]


def test_an_unknown_id_is_one_sentence(page: Browser) -> None:
    enter(page, "the-admin")
    said = search(page, "nobody")
    assert "The id nobody is not stored" in said
    assert said.count("is not stored") == 1
    assert page.run("return document.getElementById('found').hidden")


def test_a_consumer_sees_only_what_it_may_read(page: Browser, folder: Path) -> None:
    consumers = ConsumerRegistry.open(folder)
    consumers.add("ads", "v1", Lineage.open(folder).resolve)
    token = consumers.issue_token("ads")
    time.sleep(0.5)  # the service looks again
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


def test_by_keyboard_and_on_a_phone(page: Browser) -> None:
    enter(page, "the-admin")
    page.wait("document.activeElement.id === 'id'")
    page.keys(*"object 3", ENTER)
    page.wait("!document.getElementById('found').hidden")
    focus = (
        "const e = document.activeElement;"
        "return [e.id || e.className || e.tagName, getComputedStyle(e).outlineStyle]"
    )
    for _ in range(20):
        page.keys(TAB)
        name, outline = page.run(focus)
        assert outline != "none", name
    sides = (
        "return [...document.querySelectorAll('#found section')]"
        ".map((s) => s.getBoundingClientRect().left)"
    )
    first, second = page.run(sides)
    assert second > first
    page.size(375)
    first, second = page.run(sides)
    assert second == first
    assert page.run("return document.documentElement.scrollWidth") <= 375
