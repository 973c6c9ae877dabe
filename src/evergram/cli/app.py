"""The command's app, its groups, the page of help from first use to operation, and its words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import evergram
from evergram.collectives import process_count
from evergram.did_you_mean import did_you_mean
from evergram.errors import RecipeError
from evergram.log_lines import LogFormat, set_log_format

# The page of `evergram --help`: its panels, and the commands and groups in each.
PANELS = {
    "First steps": ("demo", "init", "prepare"),
    "Train": ("train", "upgrade"),
    "Measure and choose": ("evaluate", "tune", "diagnose", "reproduce"),
    "Operate": ("serve", "lineage", "consumer", "store"),
    "Vectors that any model made": ("vectors",),
}
# Commands whose processes, started by torchrun, share one work.
SHARING = ("train", "upgrade")


class NamedCommands(TyperGroup):
    """A group that answers an unknown name with the nearest ones, those of its groups too, and
    refuses to start in several processes a command that would do the same in each."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            self._refuse(ctx, args[0])
        name, command, rest = super().resolve_command(ctx, args)
        groups = []
        while ctx.parent is not None:
            groups.append(ctx.info_name)
            ctx = ctx.parent
        words = " ".join([*reversed(groups), str(name)])
        shared = isinstance(command, TyperGroup) or words in SHARING
        if process_count() > 1 and not shared:
            raise RecipeError(
                f"evergram {words} runs in one process, and WORLD_SIZE is {process_count()}; only "
                f"{', '.join(SHARING[:-1])} and {SHARING[-1]} share their work: start it without "
                "torchrun."
            )
        return name, command, rest

    def _refuse(self, ctx: Any, name: str) -> NoReturn:
        """Raise typer's error of a wrong command line."""
        meant: dict[str, list[str]] = {}
        for word, command in self.commands.items():
            meant.setdefault(word, []).append(repr(word))
            for inner in getattr(command, "commands", ()):
                meant.setdefault(inner, []).append(repr(f"{word} {inner}"))
        hint = did_you_mean(name, meant, write=lambda word: " or ".join(sorted(meant[word])))
        ctx.fail(f"No such command {name!r}{hint}.")
        raise AssertionError  # for type checkers: `fail` does not return


class FrontPage(NamedCommands):
    """The top level, whose commands stand in the panels and the order of PANELS."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = []
        for panel, members in PANELS.items():
            for name in members:
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]
                names.append(name)
        return names


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
    GROUPS[_words] = typer.Typer(cls=NamedCommands, help=_help, no_args_is_help=True)
    GROUPS[_group].add_typer(GROUPS[_words], name=_name)


# Whether this run of the command shows no progress, and prints JSON.
_quiet = False
_json = False


def is_quiet() -> bool:
    """Return whether `--quiet` was given."""
    return _quiet


def is_json() -> bool:
    """Return whether `--json` was given."""
    return _json


def _forget() -> None:
    """Leave nothing to a later command of the same process."""
    global _quiet, _json
    _quiet = _json = False


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
            "--log-format",
            help="Write progress, warnings and errors as sentences, or each as one line of JSON.",
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
    global _quiet, _json
    _quiet, _json = quiet, as_json
    context.call_on_close(_forget)
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
