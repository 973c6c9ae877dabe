"""The help of every command, as the command itself has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from evergram.cli import app


def commands_page() -> str:
    """Return a page of every command that help shows: its use, its arguments and its options."""
    top: Any = typer.main.get_command(app)
    parts = [
        "# Help of every command",
        "`evergram COMMAND --help` of all commands. [Commands](commands.md) explains them.",
    ]
    parts += [_section(name, command) for name, command in listed(top)]
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


def _section(name: str, command: Any) -> str:
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
    return f"## `{name}`\n\n{text}\n\n" + ("\n".join(rows) if len(rows) > 2 else "")
