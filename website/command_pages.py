"""The reference of commands: what docs/commands.md says of each, with the command's own help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from evergram.cli import app


def commands_page(text: str) -> str:
    """Return the page with each command's help and options in its section.

    Args:
        text: docs/commands.md; a heading names one command, or several with bars between them.
    """
    help_of = dict(listed(typer.main.get_command(app)))
    parts = []
    for section in re.split(r"(?m)^(?=## )", text):
        parts.append(section.strip())
        if heading := re.match(r"## `(evergram [^`]+)`", section):
            *before, last = heading[1].split()
            names = [" ".join([*before, word]) for word in last.split("|")]
            parts += [_options(name, help_of[name]) for name in names]
    return "\n\n".join(parts) + "\n"


def listed(group: Any, before: str = "evergram") -> Iterator[tuple[str, Any]]:
    """Yield the full name of every command that is not hidden, with the command."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        full = f"{before} {name}"
        if hasattr(command, "commands"):
            yield from listed(command, full)
        else:
            yield full, command


def _options(name: str, command: Any) -> str:
    rows = ["| | | |", "|---|---|---|"]
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            words: tuple[str, ...] = (parameter.metavar or parameter.name.upper(),)
        else:
            words = (*parameter.opts, *parameter.secondary_opts)
        names = ", ".join(f"`{word}`" for word in words)
        needed = "required" if parameter.required else ""
        help_text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
        rows.append(f"| {names} | {help_text} | {needed} |")
    text = (command.help or "").strip()
    return f"**`{name}`**: {text}\n\n" + ("\n".join(rows) if len(rows) > 2 else "")
