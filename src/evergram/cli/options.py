"""The app, and the arguments and options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.training.progress import Progress
    from evergram.training.recipe import Recipe

app = typer.Typer(
    help="Train embeddings without negative sampling; ship new versions without breaking anyone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE.toml", help="What to run.")]
# Text, as a Path would make s3:/ of s3://.
LineageOption = Annotated[str, typer.Option("--lineage", help="Folder or address of the lineage.")]
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
        "--as", metavar="VERSION", help="Read as this version or label (default: newest)."
    ),
]
Promote = Annotated[
    bool,
    typer.Option(
        " /--no-promote", help="Publish beside the version in production, which stays stable."
    ),
]
AllowSmallOverlap = Annotated[
    bool,
    typer.Option(
        "--allow-small-overlap",
        help="Publish, without a certificate, what has few objects in common with the past.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seed = Annotated[int | None, typer.Option(help="Override the recipe's seed.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Board = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write TensorBoard's files here (needs the extra)."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Override a key of the recipe."),
]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]
IdColumn = Annotated[str, typer.Option(help="The column (or tensor) of ids.")]
VectorColumn = Annotated[str, typer.Option(help="The column (or tensor) of vectors.")]


def load_recipe(path: Path, seed: int | None, overrides: list[str] | None) -> Recipe:
    from evergram.training.recipe import Recipe

    return Recipe.load(path, [*(overrides or []), *([] if seed is None else [f"seed={seed}"])])


def stores_by_side(given: Sequence[str]) -> dict[str, str]:
    """Read `--store SIDE=ADDRESS`, given any number of times.

    Returns: side to address.
    Raises: DataError: one is not that, or a side comes twice. The message does not repeat what was
        given: there may be a password in it.
    """
    found: dict[str, str] = {}
    for text in given:
        side, _, address = text.partition("=")
        # An address without a side may have an equals sign too.
        if not address or not re.fullmatch(r"[^\s:/@#]+", side):
            raise DataError(
                "--store must be SIDE=ADDRESS, as in candidate=lance:vectors#films; what was given "
                "is not, and is not repeated here, as there may be a password in it."
            )
        if side in found:
            raise DataError(f"--store is given twice for side {side!r}; give each side once.")
        found[side] = address
    return found


def new_progress() -> Progress:
    from evergram.training.progress import Progress

    return Progress()
