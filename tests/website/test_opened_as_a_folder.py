"""The built site loads nothing from elsewhere, and its search works without a server."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from tests.support.browser import missing, open_browser
from website.__main__ import ROOT, sources

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
    assert len(pages) > 3
    for path in pages:
        outside = [a for a in loaded(path.read_text()) if re.match(r"(?:https?:)?//", a)]
        assert not outside, path
        # A diagram's script would be loaded when the page has one.
        assert 'class="mermaid"' not in path.read_text()


def test_no_source_of_a_page_names_an_image_or_script_elsewhere() -> None:
    for path, _ in sources():
        if path.suffix in (".md", ".html", ".css", ".js"):
            text = path.read_text()
            assert not re.search(r"!\[[^\]]*\]\((?:https?:)?//", text), path
            if path.suffix != ".md":
                assert not [a for a in loaded(text) if re.match(r"(?:https?:)?//", a)], path


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
