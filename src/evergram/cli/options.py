"""Declaration of commands, descriptions of shared options, and parsing of their values."""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from evergram.cli.app import GROUPS, run
from evergram.collectives import is_first_process
from evergram.errors import DataError, RecipeError
from evergram.log_lines import LogFormat, log_format, write_line

if TYPE_CHECKING:
    from evergram.lineage.lineage import Lineage
    from evergram.training.progress import Progress

Function = TypeVar("Function", bound=Callable[..., Any])


Description = str | dict[str, Any]


def described(text: str, **more: Any) -> dict[str, Any]:
    """Return keyword arguments of `typer.Option`, from "METAVAR | help" or just the help, and
    `more` of them; `name` overrides the option's name."""
    metavar, bar, help_text = text.partition(" | ")
    return {"help": help_text, "metavar": metavar, **more} if bar else {"help": text, **more}


WHERE = (
    "a folder, postgresql://…#TABLE, lance:DIR#TABLE, qdrant:URL#COLLECTION or sqlite:FILE#NAME. "
    "Put a database's password into PGPASSWORD or ~/.pgpass, a Qdrant server's key into "
    "QDRANT_API_KEY."
)
# Descriptions of parameters that several commands have; a command may override them.
SHARED: dict[str, Description] = {
    "recipe": "RECIPE.toml | The recipe: data, model and training, see docs/recipes.md.",
    "lineage": "DIR | Folder of the lineage, or its address (s3://…).",
    "as_": "VERSION | Read as this version or label (default: production).",
    "from_": "VERSION | The version or label whose vectors are read (default: production).",
    "side": "Side: query, candidate or object (default: candidate, or the only side).",
    "max_loss": described(
        "PERCENT | Refuse a version if an index with half of its rows one version old loses more.",
        min=0,
    ),
    "strict_probes": "Publish only if every consumer's probe is within its limit.",
    "no_promote": "Publish the version without putting it into production.",
    "allow_small_overlap": (
        "Allow few objects in common with the previous version; there is then no certificate."
    ),
    "device": "Where to compute: auto, cpu or cuda.",
    # An unescaped bracket would be parsed as markup.
    "tensorboard": (
        "DIR | Write TensorBoard files to this folder (pip install 'evergram\\[tensorboard]')."
    ),
    "set_": "KEY.PATH=VALUE | Set a key of the recipe, such as model.dim=64; repeatable.",
    "checkpoint_every": (
        "TIME|STEPS | Checkpoint interval: 60s, 5m, or a number of steps (default: 60s, and at "
        "most 2 % of the time)."
    ),
    "resume": "Resume an interrupted training run (auto), or drop its checkpoints (never).",
    "minutes": described("N | Stop training after N minutes, and publish the best epoch.", min=0),
    "force": "Overwrite an existing file.",
    "column": "ROLE=NAME | The column (or tensor) for a role: id, and vector or text; repeatable.",
    "drop_bad_rows": "Skip and count rows without an id, or with an invalid time, value or weight.",
    # Declared as a list even if only one is allowed: typer would silently use the last of several.
    "store": f"SIDE=ADDRESS | Store of a side: {WHERE}",
}


def command(words: str, example: str, **own: Description) -> Callable[[Function], Function]:
    """Register a function as a command. Positional parameters become arguments, keyword-only
    parameters options; a trailing underscore (`as_`) is removed.

    Args:
        words: the command, such as "lineage list".
        example: arguments for the example in the help.
        own: descriptions of parameters that are not in `SHARED`, or differ.
    """
    group, _, name = words.rpartition(" ")

    def register(function: Function) -> Function:
        hints, signature = get_type_hints(function), inspect.signature(function)
        parameters = []
        for parameter in signature.parameters.values():
            text = own.get(parameter.name) or SHARED[parameter.name]
            more = described(text) if isinstance(text, str) else dict(text)
            if parameter.kind is parameter.KEYWORD_ONLY:
                option = f"--{parameter.name.rstrip('_').replace('_', '-')}"
                declared = typer.Option(more.pop("name", option), **more)
            else:
                declared = typer.Argument(**more)
            kind: Any = hints[parameter.name]
            parameters.append(parameter.replace(annotation=Annotated[kind, declared]))
        untyped: Any = function
        untyped.__signature__ = signature.replace(parameters=parameters)
        GROUPS[group].command(name, epilog=f"Example: evergram {words} {example}")(function)
        return function

    return register


def open_lineage(address: str) -> Lineage:
    """Open the lineage in a folder or at an address."""
    from evergram.lineage.lineage import Lineage

    return Lineage.open(address)


def pairs_of(
    option: str, given: Iterable[str] | None, form: str, secret: bool = False
) -> dict[str, str]:
    """Return the values of a repeatable option NAME=VALUE, by name.

    Args:
        form: the expected form, for errors.
        secret: values are addresses, which may have a password (and `=`), so errors must not show
            them."""
    values: dict[str, str] = {}
    for text in given or ():
        name, _, value = text.partition("=")
        if not (name and value) or (secret and re.search(r"[\s:/@#]", name)):
            raise DataError(f"{option} must be {form}{'' if secret else f'; it is {text!r}'}.")
        if name in values:
            raise DataError(f"{option} is given twice for {name!r}; give each once.")
        values[name] = value
    return values


def refuse_unread(overrides: Iterable[str] | None, *tables: str) -> None:
    """Refuse a `--set` of any other table of the recipe. Raises: RecipeError."""
    for override in overrides or ():
        if override.partition("=")[0].split(".")[0].strip() not in tables:
            read = f"only {' and '.join(tables)} of the recipe are used here"
            raise RecipeError(f"--set {override} has no effect: {read}; leave it out.")


def columns_by_role(given: list[str] | None) -> dict[str, str]:
    """Return the values of `--column ROLE=NAME`."""
    return pairs_of("--column", given, "ROLE=NAME, as in query=user_id")


def stores_by_side(given: Iterable[str]) -> dict[str, str]:
    """Return the values of `--store SIDE=ADDRESS`: a side's address."""
    form = "SIDE=ADDRESS, as in candidate=lance:vectors#films"
    return pairs_of("--store", given, form, secret=True)


def one_store(given: list[str]) -> tuple[str, str]:
    """Return the side and address of the only `--store`."""
    if len(given) > 1:
        raise DataError("--store is given more than once; run the command once per store.")
    ((side, address),) = stores_by_side(given).items()
    return side, address


def columns_of(
    files: Iterable[Path], given: list[str] | None, content: str = "vector"
) -> dict[str, Any]:
    """Convert `--column` values to keyword arguments of `open_embeddings` or `read_texts`."""
    names = columns_by_role(given)
    for role in names.keys() - {"id", content}:
        raise DataError(f"--column has the role {role!r}; it must be id or {content}.")
    if names and all(file.suffix.lower() == ".npy" for file in files):
        raise DataError("--column was given, but .npy files have no columns; leave it out.")
    return {f"{role}_column": names.get(role, role) for role in ("id", content)}


def new_progress() -> Progress:
    """Return a display of progress on stderr; silent with `--quiet` and in all other processes."""
    from evergram.training.progress import Progress

    return Progress(quiet=run.quiet or not is_first_process())


# By what is done, when that was first said, and how much there was.
_BEGUN: dict[str, tuple[float, int]] = {}


def print_progress(done: int, total: int, what: str) -> None:
    """Say how much is done, and from the second time on how fast, and the time left."""
    if run.quiet:
        return
    sentence, now = f"{done} of {total} {what}", time.monotonic()
    begun, before = _BEGUN.setdefault(what, (now, done))
    if done > before and now > begun:
        rate = (done - before) / (now - begun)
        left = timedelta(seconds=round((total - done) / rate))
        sentence += f", {rate:,.0f} a second, {left} left"
    if sys.stderr.isatty() and log_format() is LogFormat.text:
        sys.stderr.write(f"\r{sentence}" + ("\n" if done >= total else ""))
        return
    write_line("progress", sentence, task=what, done=done, total=total)
