"""The command that makes a sidecar of a published version."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from evergram.cli.app import vector_commands
from evergram.cli.command_line.completion import versions
from evergram.cli.options import Force, IdColumn, Json, LineageFolder, VectorColumn, columns_of
from evergram.cli.printing import dump
from evergram.cli.stores.options import print_progress
from evergram.errors import DataError


@vector_commands.command(
    "sidecar",
    epilog="Example: evergram vectors sidecar lineages/texts v1.safetensors --old old.parquet "
    "--error 0.1",
)
def make(
    lineage: LineageFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write, .safetensors.")],
    old: Annotated[
        Path | None,
        typer.Option(
            "--old",
            metavar="FILE",
            help="Vectors of the version before (default: those that the lineage still stores).",
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option("--bytes", min=1, help="Bytes beside each new vector.")
    ] = None,
    error: Annotated[
        float | None,
        typer.Option("--error", min=0, help="Relative error that old readers may be left with."),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            "--version",
            metavar="VERSION",
            help="The version whose rows are read as the one before.",
            show_default="newest",
            autocompletion=versions,
        ),
    ] = None,
    side: Annotated[
        str | None, typer.Option(help="Side of the lineage (default: candidate, or the only side).")
    ] = None,
    old_ids: Annotated[
        Path | None, typer.Option("--old-ids", metavar="FILE", help="Ids of --old, one a line.")
    ] = None,
    id_column: IdColumn = None,
    vector_column: VectorColumn = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make a few bytes for each object, by which old readers get nearly the old vectors.

    `evergram serve --sidecar OUT` and `Reader.open(…, sidecars=[OUT])` read objects by it.
    """
    from evergram.lineage.lineage import Lineage
    from evergram.migration.make_sidecar import make_sidecar
    from evergram.vector_files.open_embeddings import open_embeddings
    from evergram.vector_files.writers import check_writable

    opened = Lineage.open(lineage)
    if out.suffix.lower() != ".safetensors":
        raise DataError(f"{out} must end in .safetensors, as a sidecar is such a file.")
    check_writable(out, overwrite=force)
    before = None
    if old is None and (old_ids or id_column or vector_column):
        raise DataError("--old-ids and columns are of the file --old; give it, or leave them out.")
    if old is not None:
        columns = columns_of([old], id_column, vector_column)
        before = open_embeddings(old, ids=old_ids, **columns)
    made = make_sidecar(
        opened,
        before,
        version=None if version is None else opened.resolve(version),
        side=side,
        size=size,
        error=error,
        progress=lambda done, total: print_progress(done, total, "objects"),
    )
    made.save(out)
    old_bytes = 4 * len(made.sidecar.weight)
    rows = open_embeddings(opened.stored(made.side, made.version)).rows
    facts = {
        "file": str(out),
        "version": made.version,
        "target": made.target,
        "side": made.side,
        "objects": len(made),
        "without_codes": rows - len(made),
        "bytes": made.sidecar.size,
        "share_of_old_bytes": made.sidecar.size / old_bytes,
        "error": made.error,
        "way_back_error": made.way_back_error,
        "worse": made.worse,
    }
    if as_json:
        dump(facts)
        return
    sys.stdout.write(
        f"{out}: {len(made):,} objects of side {made.side}, {made.sidecar.size} bytes each "
        f"({facts['share_of_old_bytes']:.1%} of an old vector). Read as version "
        f"{made.target}, version {made.version} has a relative error of {made.error:.3f}; by "
        f"the way back alone it is {made.way_back_error:.3f}. Codes read {made.worse:.1%} of the "
        "objects worse than that.\n"
    )
    if rows > len(made):
        sys.stdout.write(
            f"{rows - len(made):,} more objects of version {made.version} have no old vector, and "
            "are read by the way back.\n"
        )
