"""Commands between a lineage and files of vectors: import and export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from evergram.cli.app import vector_commands
from evergram.cli.command_line.completion import choices
from evergram.cli.options import (
    As,
    Force,
    From,
    IdColumn,
    Json,
    LineageFolder,
    LineageOption,
    OneShard,
    ShardCount,
    VectorColumn,
    columns_of,
    new_progress,
    other_processes,
)
from evergram.cli.printing import dump, file_written, shard_facts, shards_written
from evergram.collectives import is_first_process
from evergram.errors import DataError


@vector_commands.command(
    "import", epilog="Example: evergram vectors import old.parquet --lineage lineages/texts"
)
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of vectors.")],
    lineage: LineageOption,
    name: Annotated[str, typer.Option(help="Name of the lineage.")] = "embeddings",
    id_column: IdColumn = None,
    vector_column: VectorColumn = None,
    ids: Annotated[Path | None, typer.Option(help="Ids of FILE, one a line.")] = None,
    as_json: Json = False,
) -> None:
    """Publish embeddings, without a model, as version 0 of a new lineage.

    The file is Parquet, Arrow, .npy or safetensors.
    """
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.files.import_file import import_embeddings
    from evergram.vector_files.open_embeddings import open_embeddings

    vectors = open_embeddings(file, ids=ids, **columns_of([file], id_column, vector_column))
    facts = import_embeddings(vectors, Lineage.create(lineage, name), progress=new_progress())
    if as_json:
        dump({"lineage": str(lineage), **facts})
        return
    sys.stdout.write(
        f"Version 0 in {lineage}: {facts['rows']} vectors of {facts['dim']} dims, "
        f"{facts['fingerprint']}.\n"
    )


@vector_commands.command(
    epilog="Example: evergram vectors export lineages/shop candidates.parquet --side candidate "
    "--as stable"
)
def export(
    lineage: LineageFolder,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="File to write; its suffix says the format: .parquet, .arrow, .npy (its ids in a "
            "file beside it), .safetensors or .csv. With --shards, a folder.",
        ),
    ],
    side: Annotated[
        str | None,
        typer.Option(
            help="Side to write: query or candidate; object in a lineage of files (default: "
            "candidate, or the only side).",
            autocompletion=choices("query", "candidate", "object"),
        ),
    ] = None,
    as_version: As = None,
    from_version: From = None,
    shards: ShardCount = None,
    shard: OneShard = None,
    dimensions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Keep so many first coordinates, with length 1, if the version allows it."
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write embeddings at any version to a file, or a folder, of ids and float32 vectors."""
    from evergram.lineage.catalog import side_of
    from evergram.lineage.lineage import Lineage
    from evergram.vector_files.shards import Shards

    parts = Shards.parsed(out, shards, shard, other_processes())
    opened = Lineage.open(lineage)
    view = opened.view(as_version, from_version)
    side = side_of(opened.manifest(view.source).embeddings, str(opened.path), side)
    if parts is not None and dimensions is not None:
        raise DataError("Shards are of whole vectors; leave --dimensions out, or --shards.")
    outcome = None if parts is None else view.export_shards(parts, side, overwrite=force)
    if outcome is None:
        rows = view.export(out, side, overwrite=force, dimensions=dimensions)
    else:
        rows = outcome.rows
    dim = view.dim if dimensions is None else dimensions
    if not is_first_process():
        return
    if as_json:
        dump(
            {
                "file": str(out),
                "rows": rows,
                "dim": dim,
                "side": side,
                "version": view.source,
                "as": view.version,
                **shard_facts(outcome),
            }
        )
        return
    sys.stdout.write(
        f"{rows} {side} embeddings of version {view.source}, read as version {view.version} "
        f"({dim} dims): "
        f"{file_written(out) if outcome is None else shards_written(out, outcome)}\n"
    )
