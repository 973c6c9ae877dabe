"""The size of the project and its limits: files, lines, settings, options, names, words, walks."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import evergram
from benchmarks.walks import walked
from evergram.cli.app import parser
from evergram.training.recipe import Recipe

ROOT = Path(__file__).parents[1]
BUDGET = {
    "lines in src/evergram": 50_000,
    "files in src/evergram": 320,
    "lines in tests": 55_000,
    "lines in benchmarks and reproduction": 12_000,
    "words in docs": 45_000,
    "words in CHANGELOG.md": 800,
    "keys of recipes": 80,
    "options of commands": 200,
    "public names": 180,
}


def files(*folders: str, suffix: str = "py") -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob(f"*.{suffix}")]


def lines(paths: list[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def words(paths: list[Path]) -> int:
    return sum(len(path.read_text().split()) for path in paths)


def options(command: Any) -> Iterator[str]:
    """Yield the options of a command and its subcommands."""
    yield from (each.opts[0] for each in command.params if each.opts[0].startswith("-"))
    for inner in getattr(command, "commands", {}).values():
        yield from options(inner)


def names() -> int:
    """Return the number of names that the package and its subpackages export."""
    rooms = [room.name for room in pkgutil.iter_modules(evergram.__path__) if room.ispkg]
    packages = [evergram, *(importlib.import_module(f"evergram.{room}") for room in rooms)]
    return sum(len(getattr(package, "__all__", ())) for package in packages)


def weights() -> dict[str, int]:
    """Return the measured sizes, with the keys of BUDGET."""
    source = files("src/evergram")
    counts = [
        *(lines(source), len(source), lines(files("tests"))),
        *(lines(files("benchmarks", "reproduction")), words(files("docs", suffix="md"))),
        *(words([ROOT / "CHANGELOG.md"]), len(Recipe.key_types())),
        *(len([*options(parser())]), names()),
    ]
    return dict(zip(BUDGET, counts, strict=True))


if __name__ == "__main__":
    counts = {what: (count, BUDGET[what]) for what, count in weights().items()}
    walks = {f"files: {name}": (len(found), limit) for name, (found, limit) in walked().items()}
    for what, (count, limit) in {**counts, **walks}.items():
        over = "" if count <= limit else f", {count - limit:,} over"
        print(f"{what:72s} {count:8,} of {limit:,}{over}")
