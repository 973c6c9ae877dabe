"""Gather the site's pages in build/pages, with links that stay on the site."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from evergram.training.recipe import Recipe
from website.api_pages import api_pages
from website.command_pages import commands_page
from website.dependencies import dependencies_page
from website.http_page import http_page, openapi
from website.notebooks import page

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
# The README is the first page, and docs/index.md, the map, gets another name.
RENAMED = {"README.md": "index.md", "docs/index.md": "documents.md"}
ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def gather(pages: Path = PAGES) -> None:
    """Write all pages, images and recipes of the site into an empty folder."""
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    made = {
        **dict(api_pages()),
        "dependencies.md": dependencies_page(),
        "http.md": http_page(openapi()),
        "recipe.schema.json": json.dumps(Recipe.model_json_schema(), indent=1),
    }
    for source, place in sources():
        target = pages / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".ipynb":
            made[place] = relinked(page(json.loads(source.read_text())), f"notebooks/{source.name}")
        elif source.suffix == ".md":
            text = relinked(source.read_text(), source.relative_to(ROOT).as_posix())
            target.write_text(commands_page(text) if place == "commands.md" else text)
        else:
            shutil.copyfile(source, target)
    for name, text in made.items():
        (pages / name).parent.mkdir(exist_ok=True)
        (pages / name).write_text(text)


def sources() -> Iterator[tuple[Path, str]]:
    """Yield each file of the site, and its place on it."""
    files = [ROOT / name for name in ROOT_PAGES]
    files += [path for path in sorted((ROOT / "docs").rglob("*")) if path.is_file()]
    files += sorted((ROOT / "recipes").glob("*.toml"))
    files += sorted((ROOT / "notebooks").glob("*.ipynb"))
    for path in files:
        yield path, place_of(path.relative_to(ROOT).as_posix())


def place_of(path: str) -> str:
    """Return the place on the site of a file of the repository."""
    if path.startswith("notebooks/"):  # shown as pages
        return path.replace(".ipynb", ".md")
    return RENAMED.get(path, path.removeprefix("docs/"))


def relinked(text: str, page: str) -> str:
    """Return a page whose links lead to the site's places; one to a file that is not on it becomes
    its text.

    Args:
        page: its path in the repository.
    """
    known = {place for _, place in sources()}
    here = PurePosixPath(place_of(page)).parent

    def moved(match: re.Match[str]) -> str:
        label, target = match.groups()
        path, mark, anchor = target.partition("#")
        if "://" in path or path.startswith("mailto:") or not path:
            return match[0]
        place = place_of(_plain(PurePosixPath(page).parent / path))
        if place not in known:
            return label
        up = "../" * len(here.parts)
        return f"[{label}]({up}{place}{mark}{anchor})"

    return LINK.sub(moved, text)


def _plain(path: PurePosixPath) -> str:
    """Return a path with every `x/..` taken out."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


if __name__ == "__main__":
    gather()
