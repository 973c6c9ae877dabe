"""Commands that prepare what others read: corpora beyond memory, and texts as vectors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from evergram.cli.app import app
from evergram.cli.options import (
    DropBadRows,
    Json,
    Weights,
    columns_by_role,
    new_progress,
    refuse_idle,
    weights_of,
)
from evergram.cli.printing import dump

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
Threads = Annotated[
    int | None, typer.Option(help="Threads of the engine.", show_default="one for each core")
]
Name = Annotated[str | None, typer.Option(help="Name of the corpus.", show_default="that of OUT")]
Prefix = Annotated[
    str | None,
    typer.Option(help="Beginning of the names of a dump's files, with --kind mediawiki."),
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
    threads: Threads = None,
    name: Name = None,
    prefix: Prefix = None,
    as_json: Json = False,
) -> None:
    """Write interactions of any size to a folder that training reads piece by piece."""
    from evergram.data.prepared.prepare import prepare as prepare_corpus
    from evergram.data.prepared.settings import PrepareSettings

    if kind != "mediawiki":
        refuse_idle(context, ["prefix"], f"is of --kind mediawiki, and the kind is {kind}")
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
        threads=threads,
        name=name,
        kind=kind,
        prefix=prefix,
    )
    summary = prepare_corpus(
        list(sources),
        out,
        settings,
        append=append,
        overwrite=overwrite,
        progress=new_progress().say,
    )
    if as_json:
        dump(summary.to_json())
        return
    sys.stdout.write(f"{summary}\n")
