"""The words of a command line, and the values that a shell offers for them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from evergram.errors import EvergramError
from evergram.log_lines import LogFormat

LOG_FORMAT = "--log-format"


def command_at(arguments: Sequence[str]) -> int | None:
    """Return where a command line names its command; None if it names none."""
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        # Of the options before a command, only this one is followed by its value.
        place += 2 if arguments[place] == LOG_FORMAT else 1
    return place if place < len(arguments) else None


def with_json_first(arguments: Sequence[str]) -> list[str]:
    """Return a command line whose `--json`, wherever it was, stands before the command."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest = [word for word in arguments[:end] if word != "--json"]
    found = ["--json"] if len(rest) < end else []
    return [*found, *rest, *arguments[end:]]


@cache
def parser() -> Any:
    """Return the parser of the whole command, which typer takes a tenth of a second to build."""
    from evergram.cli.app import app

    return typer.main.get_command(app)


def options_of(arguments: Sequence[str]) -> set[str]:
    """Return the options of the command that a command line names, and of those around it."""
    command: Any = parser()
    names = {name for each in command.params for name in each.opts}
    for word in arguments[command_at(arguments) :]:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        names |= {name for each in command.params for name in each.opts}
    return names


def log_format_of(arguments: Sequence[str]) -> LogFormat:
    """Return the format that the options before a command ask for; text for one that is unknown.

    It is needed before the command line is parsed, as an error of parsing is a line, too.
    """
    chosen = LogFormat.text
    before = arguments[: command_at(arguments)]
    for word, value in pairwise([*before, ""]):
        name, equals, joined = word.partition("=")
        text = joined if equals else value
        if name == LOG_FORMAT and text in list(LogFormat):
            chosen = LogFormat(text)
    return chosen


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
