"""Commands that read interactions: a first recipe, and corpora beyond memory."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from evergram.cli.app import app
from evergram.cli.options import (
    DropBadRows,
    Force,
    Weights,
    columns_by_role,
    new_progress,
    refuse_idle,
    weights_of,
)
from evergram.cli.printing import show
from evergram.errors import DataError


@app.command(
    epilog="Example: evergram init clicks.csv --column query=user_id --column candidate=page"
)
def init(
    path: Annotated[
        Path,
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
) -> None:
    """Look at a file of interactions, and write a commented recipe that fits its size.

    Nothing is trained. The recipe can be changed before 'evergram train' runs it.
    """
    from evergram.atomic_files import write_text
    from evergram.training.first_recipe import first_recipe
    from evergram.training.recipe.training import StepSettings

    if out.suffix != ".toml":
        raise DataError(f"--out {out} must end in .toml.")
    if out.exists() and not force:
        raise DataError(
            f"{out} is there already; --force overwrites it, and --out names another file."
        )
    first = first_recipe(
        path,
        kind=kind,
        columns=columns_by_role(column),
        weights=weights_of(weight),
        folder=out.parent,
        drop_bad_rows=drop_bad_rows,
    )
    write_text(out, first.text)
    recipe = first.recipe
    assert isinstance(recipe.training, StepSettings)
    show(
        {"recipe": str(out), **first.as_json()},
        *first.sentences(),
        f"Recipe: {out}, with {recipe.model.dim_of(0)} dims, batches of "
        f"{recipe.training.batch_size} and at most {recipe.training.epochs} epochs.",
        f"Next: evergram train {shlex.quote(str(out))} --lineage lineages/{recipe.name}",
    )


Sources = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE...", help="Files, folders, globs or addresses (s3://…)."),
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")]
Kind = Annotated[
    str, typer.Option(help="What the source is: table, or another kind of \\[data] in a recipe.")
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE=NAME", help="The files' column of a role, as in query=user_id; repeatable."
    ),
]
QueryFeatures = Annotated[
    list[str] | None, typer.Option(metavar="PATH", help="Table of features of queries; repeatable.")
]
CandidateFeatures = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="Table of features of candidates; repeatable."),
]
SharedIds = Annotated[
    bool, typer.Option("--shared-ids", help="Query and candidate ids name the same things.")
]
Unique = Annotated[
    bool, typer.Option("--unique", help="Keep the first interaction of each pair alone.")
]
Core = Annotated[
    int,
    typer.Option(
        metavar="K", help="Keep queries and candidates with at least K interactions each."
    ),
]
MinimumValue = Annotated[
    float | None, typer.Option(help="Leave out interactions of a smaller value.")
]
Append = Annotated[
    bool, typer.Option("--append", help="Add the interactions to OUT, as a new part.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is in OUT.")]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Most memory that the engine takes, such as 2GiB.",
        show_default="a quarter, at most 2GiB",
    ),
]


@app.command(
    epilog="Example: evergram prepare clicks/*.parquet corpus --column query=user_id --column "
    "candidate=page"
)
def prepare(
    context: typer.Context,
    sources: Sources,
    out: Out,
    kind: Kind = "table",
    column: Column = None,
    weight: Weights = None,
    query_features: QueryFeatures = None,
    candidate_features: CandidateFeatures = None,
    shared_ids: SharedIds = False,
    unique: Unique = False,
    k_core: Core = 0,
    minimum_value: MinimumValue = None,
    drop_bad_rows: DropBadRows = False,
    append: Append = False,
    overwrite: Overwrite = False,
    memory: Memory = None,
) -> None:
    """Write interactions of any size to a folder that training reads piece by piece."""
    from evergram.data.prepared.prepare import PrepareSettings
    from evergram.data.prepared.prepare import prepare as prepare_corpus

    if kind != "table":
        for option in ("column", "weight"):
            refuse_idle(context, [option], f"names columns of a table, and the kind is {kind}")
    settings = PrepareSettings(
        columns=columns_by_role(column),
        weights=weights_of(weight),
        query_features=list(query_features) if query_features else None,
        candidate_features=list(candidate_features) if candidate_features else None,
        shared_ids=shared_ids,
        unique=unique,
        k_core=k_core,
        minimum_value=minimum_value,
        bad_rows="drop" if drop_bad_rows else "refuse",
        memory=memory,
        kind=kind,
    )
    summary = prepare_corpus(
        list(sources),
        out,
        settings,
        append=append,
        overwrite=overwrite,
        progress=new_progress().say,
    )
    show(asdict(summary), str(summary))
