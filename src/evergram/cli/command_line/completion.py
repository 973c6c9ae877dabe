"""Values that a shell offers while a command line is written.

Each function takes the beginning of a word and returns the words that it may become. None loads
torch, and none raises: what cannot be read offers nothing, as there is no place for an error.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from evergram.errors import EvergramError

Offer = Callable[[str], list[str]]
# Set by the shell's script, to what it asks for.
VARIABLE = "_EVERGRAM_COMPLETE"


def choices(*words: str) -> Offer:
    """Return what offers these words."""

    def offer(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return offer


def recipe_settings(incomplete: str) -> list[str]:
    """Offer `table.key=` for `--set`; of a single key, the values that it chooses among."""
    from evergram.training.recipe import Recipe
    from evergram.training.recipe.methods import METHODS

    kinds = Recipe.key_types()
    # Choices that are in a table of the package, and not in the key's type.
    named: dict[str, Iterable[str]] = {"upgrade.method": METHODS}
    keys = [f"{key}=" for key in kinds if f"{key}=".startswith(incomplete.partition("=")[0])]
    whole = [key for key in keys if incomplete.startswith(key)] or keys
    if len(whole) == 1:
        key = whole[0].rstrip("=")
        keys = [f"{key}={word}" for word in named.get(key) or _words(kinds[key])] or whole
    return [each for each in keys if each.startswith(incomplete)]


def _words(kind: Any) -> Iterator[str]:
    """Yield the texts and truths that a type allows."""
    if kind is bool:
        yield from ("true", "false")
    elif get_origin(kind) is Literal:
        yield from (word for word in get_args(kind) if isinstance(word, str))
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _words(part)
    elif get_origin(kind) is Annotated:
        yield from _words(get_args(kind)[0])


def versions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the labels and the versions of the lineage that the command line names."""
    from evergram.lineage.record import read_record

    folder = _lineage_of(ctx)
    if folder is None:
        return []
    try:
        record = read_record(folder / "lineage.json")
    except (EvergramError, OSError):
        return []
    words = [*sorted(record.labels), "newest", *(str(n) for n in reversed(record.readable))]
    return [word for word in words if word.startswith(incomplete)]


def consumers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the consumers of the lineage that the command line names."""
    from evergram.lineage.consumers.registry import ConsumerRegistry

    folder = _lineage_of(ctx)
    if folder is None:
        return []
    try:
        names = [consumer.name for consumer in ConsumerRegistry.open(folder).list()]
    except (EvergramError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def _lineage_of(ctx: typer.Context) -> Path | None:
    """Return the folder of a lineage that the command line names so far; an address elsewhere is
    not asked, as a shell should not wait for it."""
    folder = ctx.params.get("lineage")
    if folder is None and ctx.args:  # of an option whose value is not written yet, none is parsed
        folder = ctx.args[0]
    return Path(folder) if isinstance(folder, str) and Path(folder).is_dir() else None


@contextmanager
def words_of_bash() -> Iterator[None]:
    """Let a `with` block complete a word that bash has divided at its equals signs.

    bash hands over `--set gramian.kind=so` as `--set gramian.kind = so`, and takes words for the
    last part alone.
    """
    if os.environ.get(VARIABLE) != "complete_bash":
        yield
        return
    words, place = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
    last = words[place] if place < len(words) else ""
    words, before = words[:place], ""
    if last == "=" and words:
        words, before, last = words[:-1], f"{words[-1]}=", ""
    elif words[-1:] == ["="] and len(words) > 1:
        words, before = words[:-2], f"{words[-2]}="
    os.environ["COMP_WORDS"] = "\n".join([*words, before + last])
    os.environ["COMP_CWORD"] = str(len(words))
    offered = io.StringIO()
    try:
        with redirect_stdout(offered):
            yield
    finally:
        lines = offered.getvalue().splitlines()
        sys.stdout.write("".join(f"{line.removeprefix(before)}\n" for line in lines))
