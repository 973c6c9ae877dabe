"""The command that writes a first recipe for a file of interactions."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from evergram.cli.app import app
from evergram.cli.options import DropBadRows, Force, Json, Weights, columns_by_role, weights_of
from evergram.cli.printing import dump
from evergram.errors import DataError


@app.command(
    epilog="Example: evergram init clicks.csv --column query=user_id --column candidate=page"
)
def init(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="Interactions: .parquet, .arrow, .feather, .csv, .tsv (also .gz), lines of ids "
            "(.txt), a prepared folder, or MovieLens.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="RECIPE.toml", help="The recipe to write.")] = Path(
        "recipe.toml"
    ),
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=NAME",
            help="The file's column of the query, candidate, value, time or weight; repeatable "
            "(default: by their names).",
        ),
    ] = None,
    weight: Weights = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="What PATH is, as data.kind of a recipe (default: told by PATH)."
        ),
    ] = None,
    drop_bad_rows: DropBadRows = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Look at a file of interactions, and write a commented recipe that fits its size.

    Nothing is trained. The recipe can be changed before 'evergram train' runs it.
    """
    from evergram.atomic_files import write_text
    from evergram.training.first_recipe import first_recipe

    if len(paths) > 1:
        raise DataError(
            f"{len(paths)} paths are given, and a recipe reads one file or folder; put the files "
            "into one folder and give that, or prepare them: 'evergram prepare FILE... FOLDER'."
        )
    if out.suffix != ".toml":
        raise DataError(f"--out {out} must end in .toml.")
    if out.exists() and not force:
        raise DataError(
            f"{out} is there already; --force overwrites it, and --out names another file."
        )
    if not out.parent.is_dir():
        raise DataError(f"--out {out} is in a folder that is not there; make it first.")
    first = first_recipe(
        paths[0],
        kind=kind,
        columns=columns_by_role(column),
        weights=weights_of(weight),
        folder=out.parent,
        drop_bad_rows=drop_bad_rows,
    )
    write_text(out, first.text)
    if as_json:
        dump({"recipe": str(out), **first.as_json()})
        return
    for sentence in first.sentences():
        sys.stdout.write(f"{sentence}\n")
    from evergram.training.recipe.training import StepSettings

    recipe = first.recipe
    assert isinstance(recipe.training, StepSettings)
    sys.stdout.write(
        f"Recipe: {out}, with {recipe.model.dim_of(0)} dims, batches of "
        f"{recipe.training.batch_size} and at most {recipe.training.epochs} epochs.\n"
        f"Next: evergram train {shlex.quote(str(out))} --lineage lineages/{recipe.name}\n"
    )
