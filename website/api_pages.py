"""A page for each room of the package, of every object that is public in it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import evergram

# A room that has no names of its own to offer.
WITHOUT = ("cli",)


def rooms() -> list[str]:
    """Return the names of the package's rooms that have public objects."""
    found = [m.name for m in pkgutil.iter_modules(evergram.__path__) if m.ispkg]
    return [name for name in found if name not in WITHOUT]


def homes(package: str) -> dict[str, str]:
    """Return the dotted name of each public object of a package, with the file that has it.

    Raises: ValueError: the package exports nothing.
    """
    module = importlib.import_module(package)
    files = vars(module).get("_lazy_homes", {})
    found = {name: f"{file}.{name}" for name, file in files.items() if file != package}
    if not found:
        raise ValueError(f"{package} exports no name; a room's `__init__.py` lists what is public.")
    return found


def api_pages() -> Iterator[tuple[str, str]]:
    """Yield each page's name and its Markdown, in mkdocstrings' notation."""
    yield "api/evergram.md", _page("evergram", "The names that `import evergram` offers.")
    errors = "::: evergram.errors\n    options:\n      members_order: source\n"
    yield "api/errors.md", f"# evergram.errors\n\n{errors}"
    for room in rooms():
        package = f"evergram.{room}"
        summary = (importlib.import_module(package).__doc__ or "").strip().splitlines()[0]
        yield f"api/{room}.md", _page(package, summary)


def _page(package: str, summary: str) -> str:
    found = homes(package)
    table = [
        f"| [`{name}`][{home}] | `{home.rpartition('.')[0]}` |" for name, home in found.items()
    ]
    parts = [f"# {package}", summary, "| name | file |\n|---|---|\n" + "\n".join(table)]
    # Most names of the package itself are described with their rooms.
    elsewhere = {home for room in rooms() for home in homes(f"evergram.{room}").values()}
    own = (home for home in found.values() if package != "evergram" or home not in elsewhere)
    parts += [f"::: {home}" for home in own if home != "evergram.errors.EvergramError"]
    return "\n\n".join(parts) + "\n"
