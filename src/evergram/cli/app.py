"""The command's app, its groups, and the page of help from first use to operation."""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import evergram
from evergram.did_you_mean import did_you_mean
from evergram.log_lines import LogFormat, set_log_format

# The page of `evergram --help`: its panels, and the commands and groups in each.
PANELS = {
    "First steps": ("demo", "init", "prepare"),
    "Train": ("train", "upgrade"),
    "Measure and choose": ("evaluate", "tune", "diagnose", "reproduce"),
    "Operate": ("serve", "lineage", "consumer", "store"),
    "Vectors that any model made": ("vectors",),
}


class NamedCommands(TyperGroup):
    """A group that answers an unknown name with the nearest ones, those of its groups too."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            self._refuse(ctx, args[0])
        return super().resolve_command(ctx, args)

    def _refuse(self, ctx: Any, name: str) -> NoReturn:
        """Raise typer's error of a wrong command line."""
        meant: dict[str, list[str]] = {}
        for word, each in self._words():
            meant.setdefault(word, []).append(repr(each))
        hint = did_you_mean(name, meant, write=lambda word: " or ".join(sorted(meant[word])))
        ctx.fail(f"No such command {name!r}{hint}.")
        raise AssertionError  # for type checkers: `fail` does not return

    def _words(self) -> list[tuple[str, str]]:
        """Return each name that can be meant, with the words to write for it."""
        words = []
        for name, command in self.commands.items():
            words.append((name, name))
            if isinstance(command, TyperGroup):
                words += [(inner, f"{name} {inner}") for inner in command.commands]
        return words


class FrontPage(NamedCommands):
    """The top level, whose commands stand in the panels and the order of PANELS."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = []
        for panel, members in PANELS.items():
            for name in members:
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]
                names.append(name)
        return names


def group(help_text: str) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(cls=NamedCommands, help=help_text, no_args_is_help=True)


app: typer.Typer = typer.Typer(
    cls=FrontPage,
    help="Train embeddings without negative sampling; ship new versions without breaking anyone.",
    epilog="Begin with 'evergram demo', or with 'evergram init FILE' on a file of your own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
lineage_commands: typer.Typer = group(
    "The versions of a lineage: list and check them, label, promote, withdraw and retire them."
)
consumer_commands: typer.Typer = group(
    "The programs that read a lineage: the version of each, its token, and its probe."
)
store_commands: typer.Typer = group(
    "Stores that hold embeddings: fill, index and check them, and refresh their older rows."
)
vector_commands: typer.Typer = group(
    "Files of vectors: align, rewrite, import, export and encode them."
)
app.add_typer(lineage_commands, name="lineage")
app.add_typer(consumer_commands, name="consumer")
app.add_typer(store_commands, name="store")
app.add_typer(vector_commands, name="vectors")

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
        bool,
        typer.Option("--quiet", help="Show no progress; results, warnings and errors stay."),
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
