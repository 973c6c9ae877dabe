"""The command's app, its groups, the page of help from first use to operation, and its words."""

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

# The page of `evergram --help`: its panels, and the commands and groups in each.
PANELS = {
    "First steps": ("demo", "init", "prepare"),
    "Train": ("train", "upgrade"),
    "Measure and choose": ("evaluate", "tune", "diagnose"),
    "Operate": ("serve", "lineage", "consumer", "store"),
    "Vectors that any model made": ("vectors",),
}
# Commands whose processes, started by torchrun, share one work.
SHARING = ("train", "upgrade")


class OneProcessCommands(TyperGroup):
    """A group that refuses to start in several processes a command that would do the same in
    each."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        shared = isinstance(command, TyperGroup) or (name in SHARING and ctx.parent is None)
        if process_count() > 1 and not shared:
            several = f"runs in one process, and WORLD_SIZE is {process_count()}"
            todo = f"start it without torchrun, as only {' and '.join(SHARING)} share their work"
            raise RecipeError(f"{ctx.command_path} {name} {several}; {todo}.")
        return name, command, rest


class FrontPage(OneProcessCommands):
    """The top level, whose commands stand in the panels and the order of PANELS."""

    def list_commands(self, ctx: Any) -> list[str]:
        for panel, members in PANELS.items():
            for name in members:
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]
        return [name for members in PANELS.values() for name in members]


app: typer.Typer = typer.Typer(
    cls=FrontPage,
    help="Train embeddings without negative sampling; ship new versions without breaking anyone.",
    epilog="Begin with 'evergram demo', or with 'evergram init FILE' on a file of your own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
GROUPS: dict[str, typer.Typer] = {"": app}
for _words, _help in {
    "lineage": "The versions of a lineage: list and check them, label, promote, withdraw and "
    "retire them.",
    "consumer": "The programs that read a lineage: the version of each, its token, and its probe.",
    "store": "Stores that hold embeddings: fill and index them, and refresh their older rows.",
    "store backfill": "Refresh a store's older rows to production's version, the worst first.",
    "vectors": "Files of vectors: align, rewrite, import, export and encode them.",
}.items():
    _group, _, _name = _words.rpartition(" ")
    GROUPS[_words] = typer.Typer(cls=OneProcessCommands, help=_help, no_args_is_help=True)
    GROUPS[_group].add_typer(GROUPS[_words], name=_name)


@dataclass
class _Run:
    """What this run of the command was asked for, whichever command it is."""

    quiet: bool = False
    json: bool = False


run = _Run()


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"evergram {evergram.__version__}")
        raise typer.Exit


@app.callback()
def _before_every_command(
    context: typer.Context,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show no progress; results, warnings and errors stay.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the result as one JSON object; also at the end of the line."
        ),
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            help="Write progress, warnings and errors as sentences, or each as one line of JSON."
        ),
    ] = LogFormat.text,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version of Evergram, and end.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    run.quiet, run.json = quiet, as_json
    # Nothing is left to a later command of the process.
    context.call_on_close(lambda: vars(run).update(quiet=False, json=False))
    set_log_format(log_format)


def with_json_first(arguments: Sequence[str]) -> list[str]:
    """Return a command line whose `--json`, wherever it was, stands before the command."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest = [word for word in arguments[:end] if word != "--json"]
    found = ["--json"] if len(rest) < end else []
    return [*found, *rest, *arguments[end:]]


def log_format_of(arguments: Sequence[str]) -> LogFormat:
    """Return the format that a command line asks for, before it is parsed: an error of parsing is a
    line, too."""
    chosen = re.findall(r"(?:^| )--log-format[ =](text|json)(?= |$)", " ".join(arguments))
    return LogFormat(chosen[-1]) if chosen else LogFormat.text


@cache
def parser() -> Any:
    """Return the parser of the whole command, which typer takes a tenth of a second to build."""
    return typer.main.get_command(app)


def commands_of(arguments: Sequence[str]) -> list[Any]:
    """Return the commands that a command line names, such as `lineage` and then its `list`, after
    the one that has all of them."""
    named = [parser()]
    for word in arguments:
        inner = getattr(named[-1], "commands", {}).get(word)
        named += [] if inner is None else [inner]
    return named


def options_of(arguments: Sequence[str]) -> set[str]:
    """Return the options of the command that a command line names, and of those around it."""
    return {name for one in commands_of(arguments) for each in one.params for name in each.opts}
