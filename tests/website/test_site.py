"""Licences and the bill of materials; a site that loads nothing from elsewhere."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from mkdocs.commands.build import build
from mkdocs.config import load_config
from tests.support.browser import missing, open_browser
from website.__main__ import ROOT, sources
from website.api_pages import api_pages, homes, rooms
from website.command_pages import commands_page, listed
from website.dependencies import (
    EXCEPTIONS,
    Licence,
    closure,
    dependencies,
    extras_of_ours,
    licence_of,
)
from website.http_page import http_page, openapi

from evergram.cli import app
from website import bill_of_materials as bill

# Extras that no user runs: those of developers, and of benchmarks.
OF_DEVELOPERS = {"dev", "site", "peers"}
RUNTIME = [extra for extra in extras_of_ours() if extra not in OF_DEVELOPERS]


def test_every_runtime_dependency_is_permissive_or_a_named_exception() -> None:
    known = dependencies(RUNTIME)
    assert {"torch", "numpy", "fastapi", "starlette"} <= {part.name for part in known}
    assert {p.name for p in known if not p.licence.permissive} <= set(EXCEPTIONS)
    assert not {p.name for p in known if p.licence.permissive} & set(EXCEPTIONS)
    assert all(part.licence.permissive for part in dependencies([]))
    page = (ROOT / "docs" / "security.md").read_text().split("## Supply chain")[1]
    assert all(f"`{name}`" in page for name in EXCEPTIONS)


@pytest.mark.parametrize(
    ("field", "value", "expression", "permissive"),
    [
        ("License-Expression", "MIT AND GPL-3.0-only", "MIT AND GPL-3.0-only", False),
        ("License-Expression", "Apache-2.0 AND (MIT OR GPL-2.0-only)", None, True),
        ("License", "All rights reserved", "", False),
        ("Classifier", "License :: OSI Approved :: Apache Software License", "Apache-2.0", True),
        ("Classifier", "License :: OSI Approved :: GNU General Public License v3", "GPL", False),
    ],
)
def test_a_licence_is_read_and_judged(
    field: str, value: str, expression: str | None, permissive: bool
) -> None:
    metadata = Message()
    metadata[field] = value
    read = licence_of(SimpleNamespace(metadata=metadata))  # type: ignore[arg-type]
    assert read == Licence(value if expression is None else expression)
    assert read.permissive is permissive


def test_the_bill_of_materials_is_whole_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = bill.bill_of_materials(["serve"])
    assert document == bill.bill_of_materials(["serve"])
    assert {part["name"] for part in document["components"]} == closure("serve")
    own = document["metadata"]["component"]["bom-ref"]
    nodes = {node["ref"]: set(node["dependsOn"]) for node in document["dependencies"]}
    assert set(nodes) == {own, *(part["bom-ref"] for part in document["components"])}
    assert {f"pkg:pypi/{n}@{distribution(n).version}" for n in ("numpy", "fastapi")} <= nodes[own]
    bill.main(["--out", str(tmp_path / "new" / "bom.json")])
    assert json.loads((tmp_path / "new" / "bom.json").read_text())["specVersion"] == "1.6"
    with pytest.raises(ValueError, match="sevre"):
        bill.bill_of_materials(["sevre"])
    monkeypatch.setattr(bill, "missing", lambda extra: {"h11"} if extra == "serve" else set())
    with pytest.raises(SystemExit):
        bill.main(["--extras", "serve", "--out", str(tmp_path / "bom.json")])
    assert not (tmp_path / "bom.json").exists()


PAGE = """# Penalties

```mermaid
graph TD
```

The quagga is a word of this page only. [Elsewhere](https://example.org)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of two pages, built by the settings of the whole one."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "pages").mkdir()
    shutil.copytree(ROOT / "docs" / "site", folder / "pages" / "site")
    (folder / "pages" / "index.md").write_text("# Start\n")
    (folder / "pages" / "penalty.md").write_text(PAGE)
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(folder / "pages"),
        site_dir=str(folder / "built"),
        nav=None,
    )
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder / "built"


def loaded(page: str) -> list[str]:
    """Return the addresses of what a browser loads with a page, or names it in its style."""
    tags = re.findall(r"<(script|img|iframe|source|link)\b([^>]*)>", page)
    addresses = [
        address
        for tag, attributes in tags
        for address in re.findall(r'(?:src|srcset|href)="?([^"\s>]+)', attributes)
        if tag != "link" or not re.search(r"rel=\"?(canonical|next|prev|alternate)", attributes)
    ]
    return addresses + re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')\s]+)", page)


def test_no_page_names_anything_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    own = [path for path, _ in sources() if path.suffix in (".html", ".css", ".js")]
    for path in [*pages, *own]:
        assert not [a for a in loaded(path.read_text()) if re.match(r"(?:https?:)?//", a)], path
        # A diagram's script would be loaded when the page has one.
        assert path in own or 'class="mermaid"' not in path.read_text()
    for path in (path for path, _ in sources() if path.suffix == ".md"):
        assert not re.search(r"!\[[^\]]*\]\((?:https?:)?//", path.read_text()), path


@pytest.mark.skipif(missing() is not None, reason=f"{missing()}")
def test_the_search_of_a_folder_finds_a_word(site: Path, tmp_path: Path) -> None:
    with open_browser(tmp_path / "profile") as browser:
        browser.forget()
        browser.open((site / "index.html").as_uri())
        browser.wait("document.readyState === 'complete'")
        browser.run("document.querySelector('.md-search__input').focus()")
        browser.keys(*"quagga")
        found = browser.wait("document.querySelector('.md-search-result__link')?.href", 30)
        assert "penalty.html" in found
        browser.listen()
        assert not browser.console
        assert len(browser.requests) > 5
        assert not [url for url in browser.requests if not url.startswith(("file:", "data:"))]


def test_every_public_object_of_every_room_has_its_place_in_the_reference() -> None:
    pages = dict(api_pages())
    for room in rooms():
        package = importlib.import_module(f"evergram.{room}")
        assert sorted(homes(f"evergram.{room}")) == sorted(package.__all__)
        for home in homes(f"evergram.{room}").values():
            assert f"::: {home}\n" in pages[f"api/{room}.md"]
    described = "".join(pages.values())
    for name, home in homes("evergram").items():
        assert f"::: {home}\n" in described or home.startswith("evergram.errors."), name


def test_the_navigation_names_a_page_for_each_room() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert all(f"api/{room}.md" in navigation for room in (*rooms(), "evergram", "errors"))


def test_every_command_and_option_that_help_shows_is_on_the_page() -> None:
    page = commands_page((ROOT / "docs" / "commands.md").read_text())
    shown = list(listed(typer.main.get_command(app)))
    assert len(shown) > 20
    for name, command in shown:
        section = page.split(f"**`{name}`**")[1].split("\n**`")[0].split("\n## ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert f"`{parameter.opts[0]}`" in section, (name, parameter.opts)


@pytest.mark.long
def test_every_path_of_the_service_is_on_the_page() -> None:
    description = openapi()
    page = http_page(description)
    for path, methods in description["paths"].items():
        for method in methods:
            assert f"## `{method.upper()} {path}`" in page
    search = page.split("## `POST /v1/search`")[1].split("\n## ")[0]
    assert "| `k` |" in search
    assert "| 404 |" in search
