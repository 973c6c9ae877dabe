"""The typer app: its groups, its help page, and parsing of the global options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import evergram
from evergram.collectives import process_count
from evergram.errors import RecipeError
from evergram.log_lines import LogFormat, set_log_format

# The panels of `evergram --help`, and the commands and groups in each.
PANELS = {
    "First steps": ("demo", "init", "prepare"),
    "Train": ("train", "upgrade"),
    "Measure and choose": ("evaluate", "tune", "diagnose"),
    "Operate": ("serve", "lineage", "consumer", "store"),
    "Vectors of any model": ("vectors",),
}
# Commands that support several processes, started by torchrun.
DISTRIBUTED = ("train", "upgrade")


class OneProcessCommands(TyperGroup):
    """A group whose commands, except those of `DISTRIBUTED`, refuse to run in several processes."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        distributed = isinstance(command, TyperGroup)
        distributed = distributed or (name in DISTRIBUTED and ctx.parent is None)
        if process_count() > 1 and not distributed:
            several = f"runs in one process, but WORLD_SIZE is {process_count()}"
            todo = f"start it without torchrun, which only {' and '.join(DISTRIBUTED)} support"
            raise RecipeError(f"{ctx.command_path} {name} {several}; {todo}.")
        return name, command, rest


class FrontPage(OneProcessCommands):
    """The top level, with its commands in the panels and order of `PANELS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        for panel, members in PANELS.items():
            for name in members:
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]
        return [name for members in PANELS.values() for name in members]


app: typer.Typer = typer.Typer(
    cls=FrontPage,
    help="Train embeddings without negative sampling; ship new versions that old readers can use.",
    epilog="Start with 'evergram demo', or with 'evergram init FILE' on your data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
GROUPS: dict[str, typer.Typer] = {"": app}
for _words, _help in {
    "lineage": "List, check, label, promote, withdraw and retire the versions of a lineage.",
    "consumer": "Manage the programs that read a lineage: their versions, tokens and probes.",
    "store": "Fill and index stores of embeddings, and refresh their older rows.",
    "store backfill": "Refresh a store's older rows to production's version, the worst first.",
    "vectors": "Align, rewrite, import and export files of vectors; plan a change of model.",
}.items():
    _group, _, _name = _words.rpartition(" ")
    GROUPS[_words] = typer.Typer(cls=OneProcessCommands, help=_help, no_args_is_help=True)
    GROUPS[_group].add_typer(GROUPS[_words], name=_name)


@dataclass
class _Run:
    """The global options of this run."""

    quiet: bool = False
    json: bool = False


run = _Run()


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"evergram {evergram.__version__}")
        raise typer.Exit


@app.callback()
def _before_every_command(
    context: typer.Context,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", help="Show no progress, only results, warnings and errors."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the result as one JSON object; allowed anywhere on the line."
        ),
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(help="Write progress, warnings and errors as text, or as lines of JSON."),
    ] = LogFormat.text,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version of Evergram and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    run.quiet, run.json = quiet, as_json
    # Reset the options for a later command in the same process.
    context.call_on_close(lambda: vars(run).update(quiet=False, json=False))
    set_log_format(log_format)


def with_json_first(arguments: Sequence[str]) -> list[str]:
    """Move `--json`, wherever it is on a command line, before the command."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest = [word for word in arguments[:end] if word != "--json"]
    json_option = ["--json"] if len(rest) < end else []
    return [*json_option, *rest, *arguments[end:]]


def log_format_of(arguments: Sequence[str]) -> LogFormat:
    """Return the log format of a command line before it is parsed, for parsing errors."""
    formats = re.findall(r"(?:^| )--log-format[ =](text|json)(?= |$)", " ".join(arguments))
    return LogFormat(formats[-1]) if formats else LogFormat.text


@cache
def parser() -> Any:
    """Return the parser. Cached, as typer takes a tenth of a second to build it."""
    return typer.main.get_command(app)


def commands_of(arguments: Sequence[str]) -> list[Any]:
    """Return the parser and the (sub)commands on a command line, such as `lineage` and `list`."""
    commands = [parser()]
    for word in arguments:
        subcommand = getattr(commands[-1], "commands", {}).get(word)
        commands += [] if subcommand is None else [subcommand]
    return commands


def options_of(arguments: Sequence[str]) -> set[str]:
    """Return the options of a command line's command and of its parents."""
    commands = commands_of(arguments)
    return {name for each in commands for option in each.params for name in option.opts}
