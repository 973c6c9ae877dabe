"""The arguments and options that several commands share."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergram.cli.app import app, is_quiet
from evergram.cli.words import command_at
from evergram.collectives import ALONE, Collectives, is_first_process, process_count
from evergram.errors import DataError, RecipeError
from evergram.log_lines import LogFormat, log_format, write_line

if TYPE_CHECKING:
    from evergram.training.progress import Progress
    from evergram.training.recipe import Recipe


# Commands whose processes, started by torchrun, share one work.
SHARING = ("train", "upgrade", "vectors align", "vectors export", "vectors transform")

RecipeFile = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE.toml", help="The recipe: data, model and training, as docs/recipes.md says."
    ),
]
# Text, as a Path would make s3:/ of s3://.
LineageOption = Annotated[str, typer.Option(help="Folder or address of the lineage.")]
LineageFolder = Annotated[
    str, typer.Argument(metavar="DIR", help="Folder of the lineage, or its address (s3://…).")
]
StrictProbes = Annotated[
    bool,
    typer.Option("--strict-probes", help="Publish only if no consumer's probe is past its limit."),
]
As = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="VERSION", help="Read as this version or label (default: production)."
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="VERSION",
        help="The version or label whose vectors are read (default: production).",
    ),
]
MaxDegradation = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="PERCENT",
        help="Publish only if neither the model nor a past version loses more of the metric.",
    ),
]
Kept = Annotated[
    bool,
    typer.Option(
        "--kept",
        help="Publish a model that was trained when another upgrade was published first; only its "
        "transform is fitted.",
    ),
]
NoPromote = Annotated[
    bool,
    typer.Option("--no-promote", help="Publish the version, and leave production where it is."),
]
AllowSmallOverlap = Annotated[
    bool,
    typer.Option(
        "--allow-small-overlap",
        help="Publish, without a certificate, a version with few objects in common with the past.",
    ),
]
Device = Annotated[
    str,
    typer.Option(help="Where to compute: auto, cpu or cuda."),
]
Board = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        # A bracket that is not escaped is taken for markup, and not shown.
        help="Write TensorBoard's files to this folder (pip install 'evergram\\[tensorboard]').",
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Write what was measured as one page of HTML."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Set a key of the recipe, such as model.dim=64; repeatable.",
    ),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        metavar="TIME|STEPS",
        help="Save the training every so often: 60s, 5m, or a number of steps (default: 60s, and "
        "at most 2 % of the time).",
    ),
]
Resume = Annotated[
    str,
    typer.Option(
        metavar="auto|never",
        help="Resume an interrupted training (auto), or drop its checkpoints (never).",
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="N", help="End training after so many minutes, and publish its best epoch."
    ),
]
Side = Annotated[
    str | None,
    typer.Option(help="Side: query, candidate or object (default: candidate, or the only side)."),
]
Thorough = Annotated[
    bool,
    typer.Option("--thorough", help="Search longer for λ, l2 and the rate (training.thorough)."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
ShardCount = Annotated[
    str | None,
    typer.Option(
        metavar="N|I/N",
        help="Write a folder of N Parquet files, or only its file I, from 0; resumes.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE=NAME",
        help="The column (or tensor) of a role: id, and vector or text; repeatable.",
    ),
]


def load_recipe(
    path: Path,
    overrides: list[str] | None,
    *,
    unread: Collection[str] = (),
    thorough: bool = False,
) -> Recipe:
    """Return the recipe of a command.

    Args:
        overrides: the values of `--set`.
        unread: tables or keys that the command ignores; overrides of them are refused, unless the
            recipe is not valid without them.
        thorough: whether `--thorough` was given.
    """
    from evergram.training.recipe import Recipe

    overrides = [*(overrides or []), *(["training.thorough=true"] if thorough else [])]
    read = [each for each in overrides if not _is_unread(each, unread)]
    try:
        recipe = Recipe.load(path, read)
    except RecipeError:
        return Recipe.load(path, overrides)
    refuse_unread(overrides, unread)
    return recipe


def refuse_unread(overrides: list[str] | None, unread: Collection[str]) -> None:
    """Refuse overrides that would change nothing. Raises: RecipeError."""
    for override in overrides or ():
        if _is_unread(override, unread):
            key = override.partition("=")[0].strip()
            raise RecipeError(
                f"--set {override} changes nothing here: this command does not read {key}; leave "
                "it out."
            )


def _is_unread(override: str, unread: Collection[str]) -> bool:
    key = override.partition("=")[0].strip()
    return key in unread or key.partition(".")[0] in unread


def refuse_idle(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Refuse options that were given and would do nothing. Raises: DataError.

    Args:
        names: of the command's parameters.
        why: what the options are for, and what is given in its place.
    """
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise DataError(f"--{name.replace('_', '-')} {why}; leave it out.")


def columns_of(
    files: Iterable[Path], options: list[str] | None, content: str = "vector"
) -> dict[str, Any]:
    """Return the columns that `--column` names, as `open_embeddings` and `read_texts` take them.

    Raises: DataError: a column has another role, or none of the files has columns.
    """
    names = columns_by_role(options)
    for role in names.keys() - {"id", content}:
        raise DataError(f"--column names {role!r}; the columns are those of id and {content}.")
    if names and all(file.suffix.lower() == ".npy" for file in files):
        raise DataError("--column was given, and a .npy file has no columns; leave it out.")
    return {f"{role}_column": names.get(role, role) for role in ("id", content)}


DropBadRows = Annotated[
    bool,
    typer.Option(
        "--drop-bad-rows",
        help="Leave out rows without an id, or with a time, value or weight that is none, and say "
        "so.",
    ),
]


Weights = Annotated[
    list[str] | None,
    typer.Option(
        metavar="EVENT=NUMBER",
        help="Weight of the rows of an event, where the column of weights holds names; repeatable.",
    ),
]


def columns_by_role(options: list[str] | None) -> dict[str, str]:
    """Return the values of `--column ROLE=NAME`. Raises: DataError: one has another form."""
    names: dict[str, str] = {}
    for option in options or ():
        role, equals, column = option.partition("=")
        if not (equals and role and column):
            raise DataError(f"--column is {option!r}; it is ROLE=NAME, as in query=user_id.")
        if role in names:
            raise DataError(f"--column names {role} twice; name it once.")
        names[role] = column
    return names


def weights_of(options: list[str] | None) -> dict[str, float]:
    """Return the values of `--weight EVENT=NUMBER`. Raises: DataError: one has another form."""
    weights: dict[str, float] = {}
    for option in options or ():
        name, _, number = option.rpartition("=")
        try:
            weights[name] = float(number)
        except ValueError:
            name = ""
        if not name:
            raise DataError(f"--weight is {option!r}; it is EVENT=NUMBER, as in cart=3.")
    return weights


def stores_by_side(options: Sequence[str]) -> dict[str, str]:
    """Return the values of `--store SIDE=ADDRESS` as side to address.

    Raises: DataError: a value has another form, or a side comes twice. The message does not repeat
        the value, which may hold a password.
    """
    addresses: dict[str, str] = {}
    for text in options:
        side, _, address = text.partition("=")
        # An address without a side may have an equals sign too.
        if not address or not re.fullmatch(r"[^\s:/@#]+", side):
            raise DataError(
                "--store must be SIDE=ADDRESS, as in candidate=lance:vectors#films; what was given "
                "is not, and is not repeated here, as there may be a password in it."
            )
        if side in addresses:
            raise DataError(f"--store is given twice for side {side!r}; give each side once.")
        addresses[side] = address
    return addresses


def new_progress() -> Progress:
    """Return what shows progress on stderr: nothing with `--quiet`; of several processes, the
    first one's."""
    from evergram.training.progress import Progress

    return Progress(quiet=is_quiet() or not is_first_process())


def other_processes() -> Collectives:
    """Return the operations that this process does together with those that torchrun started."""
    if process_count() == 1:
        return ALONE
    import torch

    from evergram.training.distributed.process_group import join_processes

    return join_processes(torch.device("cpu"))


def refuse_unshared(arguments: Sequence[str]) -> None:
    """Refuse a command whose processes would all do the same. Raises: RecipeError."""
    words = [word for word in arguments[command_at(arguments) :] if not word.startswith("-")]
    grouped = words[:1] and words[0] in {group.name for group in app.registered_groups}
    command = " ".join(words[: 2 if grouped else 1])
    if process_count() > 1 and command and command not in SHARING:
        sharing = f"{', '.join(SHARING[:-1])} and {SHARING[-1]}"
        raise RecipeError(
            f"evergram {command} runs in one process, and WORLD_SIZE is {process_count()}; only "
            f"{sharing} share their work: start it without torchrun."
        )


def refuse_shared_fit(*, kept: bool) -> None:
    """Refuse `--kept` in several processes: it trains nothing. Raises: RecipeError."""
    if kept and process_count() > 1:
        raise RecipeError(
            "--kept trains no model, so there is nothing to share; leave out torchrun."
        )


WHERE = (
    "a folder, postgresql://…#TABLE, lance:DIR#TABLE, qdrant:URL#COLLECTION or sqlite:FILE#NAME. "
    "A database's password is best in PGPASSWORD or ~/.pgpass, a Qdrant server's key in "
    "QDRANT_API_KEY."
)
Stores = Annotated[
    list[str],
    typer.Option(
        metavar="SIDE=ADDRESS",
        help=f"Store of a side; repeatable, once for each side: {WHERE}",
    ),
]
# A list, though one store is taken: of several, typer would silently take the last.
OneStore = Annotated[
    list[str],
    typer.Option(metavar="SIDE=ADDRESS", help=f"Store of a side: {WHERE}"),
]


def one_store(options: list[str], what: str) -> tuple[str, str]:
    """Return the side and the address of the one `--store`. Raises: DataError: there are more."""
    if len(options) > 1:
        raise DataError(
            f"{what} is of one store; {len(options)} were given by --store: run the command once "
            "for each."
        )
    ((side, address),) = stores_by_side(options).items()
    return side, address


def print_progress(done: int, total: int, what: str) -> None:
    if is_quiet():
        return
    sentence = f"{done} of {total} {what}"
    if sys.stderr.isatty() and log_format() is LogFormat.text:
        sys.stderr.write(f"\r{sentence}" + ("\n" if done >= total else ""))
        return
    write_line("progress", sentence, task=what, done=done, total=total)
