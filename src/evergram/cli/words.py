"""The words of a command line, before it is parsed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import typer

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
