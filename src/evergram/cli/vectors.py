"""The commands of `evergram vectors`: files of vectors, whatever model made them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from evergram.cli.app import is_json, vector_commands
from evergram.cli.options import (
    AllowSmallOverlap,
    As,
    Columns,
    Force,
    From,
    LineageFolder,
    LineageOption,
    NoPromote,
    ShardCount,
    Side,
    StrictProbes,
    columns_of,
    new_progress,
    other_processes,
    print_progress,
)
from evergram.cli.printing import (
    dump,
    number,
    paragraph,
    print_probes,
    shard_facts,
    show,
    table,
    written_to,
)
from evergram.collectives import is_first_process
from evergram.errors import DataError

_MAPPINGS = {
    "transformed": "new, transformed",
    "as_is": "new, as it is",
    "in_sample": "fitted to these too",
    "chance": "objects mixed up",
}


OldVectors = Annotated[
    str,
    typer.Argument(
        metavar="OLD", help="File of old vectors, or the newest version (its number, or newest)."
    ),
]
NewVectors = Annotated[Path, typer.Argument(metavar="NEW", help="File of new vectors.")]
TransformKind = Annotated[
    str,
    typer.Option(
        help="Kind of the backward transform: linear, affine, orthogonal, low_rank, or scaled "
        "(orthogonal, times a number)."
    ),
]
Rank = Annotated[
    int | None, typer.Option(min=1, help="Rank of a low_rank transform.", show_default="32")
]
HeldOut = Annotated[
    float,
    typer.Option(
        help="Share of the common objects that the transform is not fitted to, but measured on."
    ),
]
NewName = Annotated[
    str | None, typer.Option(help="Name of a new lineage.", show_default="embeddings")
]
MaxError = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Limit of the relative error on held-out objects; being better than chance is "
        "asked for in any case; inf for neither.",
    ),
]


@vector_commands.command(
    epilog="Example: evergram vectors align old.parquet new.parquet --lineage lineages/texts"
)
def align(
    old: OldVectors,
    new: NewVectors,
    lineage: LineageOption,
    transform: TransformKind = "linear",
    rank: Rank = None,
    held_out: HeldOut = 0.1,
    name: NewName = None,
    column: Columns = None,
    max_error: MaxError = None,
    allow_small_overlap: AllowSmallOverlap = False,
    strict_probes: StrictProbes = False,
    no_promote: NoPromote = False,
) -> None:
    """Publish a file of vectors as the next version, with a backward transform to an older file.

    The two files (Parquet, Arrow, .npy or safetensors) have ids in common. No model is needed.
    """
    from evergram.lineage.lineage import Lineage
    from evergram.lineage.score_maps import threshold_counts
    from evergram.releasing.align import AlignSettings, take_part_in_alignment
    from evergram.releasing.align import align as align_files
    from evergram.releasing.past_file import open_or_create
    from evergram.vector_files.open_embeddings import open_embeddings

    # The first process alone creates a lineage.
    target = open_or_create(lineage, name) if is_first_process() else None
    version = None
    if not Path(old).exists() and not Path(old).suffix:
        target = Lineage.open(lineage) if target is None else target
        version = int(old) if old.isdecimal() else target.resolve(old)
    files = [new] if version is not None else [Path(old), new]
    columns = columns_of(files, column)
    past = open_embeddings(Path(old), **columns) if version is None else version
    vectors = open_embeddings(new, **columns)
    scaled = transform == "scaled"
    kind = "orthogonal" if scaled else transform
    settings = AlignSettings(kind, rank, scaled, held_out, allow_small_overlap=allow_small_overlap)
    if target is None or not is_first_process():
        return take_part_in_alignment(past, vectors, target, settings)
    facts = align_files(
        past,
        vectors,
        target,
        settings,
        max_error=max_error,
        promote=not no_promote,
        progress=new_progress(),
        strict_probes=strict_probes,
    )
    thresholds = threshold_counts(target)
    if is_json():
        counts = [asdict(count) for count in thresholds]
        dump({"lineage": str(lineage), **facts, "thresholds": counts})
        return None
    _print_alignment(lineage, facts)
    for count in thresholds:
        paragraph(count.sentence)
    if facts["probes"]:
        print_probes(facts["probes"])
    return None


def _print_alignment(lineage: str, facts: dict[str, Any]) -> None:
    """Print what was aligned, what held-out objects keep, and how far that is from chance."""
    alignment = facts["alignment"]
    pairs = alignment["pairs"]
    by = ", paired by the numbers of their rows" if pairs["by_row_number"] else ""
    sys.stdout.write(
        f"Version {facts['version']} in {lineage}: {alignment['dims']['new']} dims, back to "
        f"{alignment['dims']['old']} by a transform (kind: {alignment['transform']['kind']}).\n"
        f"{pairs['common']} objects in common{by} ({pairs['only_old']} in the old file alone, "
        f"{pairs['only_new']} in the new one): {pairs['fitted']} fitted to ({pairs['needed']} "
        f"needed), {pairs['held_out']} held out.\n"
    )
    if pairs["only_old"]:
        sys.stdout.write(
            f"Readers of the old vectors will not find the {pairs['only_old']} of the old file "
            "alone: the index has the objects of the new file.\n"
        )
    readings = alignment["held_out"]
    header = ["", "cosine", "relative error", "overlap@10", "own queries"]
    names = list(next(iter(readings.values())))
    lines = [[_MAPPINGS[name], *(number(v[n]) for n in names)] for name, v in readings.items()]
    lines.append(["the old vectors", "1.0000", "0.0000", "1.0000", "1.0000"])
    table("What held-out objects keep", header, lines)
    sample = alignment["neighbours"]
    sys.stdout.write(
        f"Neighbours: of {sample['queries']} held-out objects among {sample['catalogue']} others, "
        "by cosine;\nown queries: of old vectors, among new ones.\n"
    )
    chance = alignment["chance"]
    sys.stdout.write(
        f"{'Better' if chance['beaten'] else 'No better'} than chance: the error is "
        f"{1 - chance['ratio']:.1%} below that of the same transform with the objects mixed up, "
        f"by {chance['deviations']:.1f} standard deviations.\n"
    )


@vector_commands.command(
    epilog="Example: evergram vectors transform new.parquet --lineage lineages/texts --as v0 "
    "--out as-v0.parquet"
)
def transform(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of vectors.")],
    lineage: LineageOption,
    as_version: Annotated[
        str,
        typer.Option("--as", metavar="VERSION", help="The version or label to write."),
    ],
    out: Annotated[
        Path,
        typer.Option(help="File to write; its suffix says the format. With --shards, a folder."),
    ],
    from_version: From = None,
    column: Columns = None,
    shards: ShardCount = None,
    force: Force = False,
) -> None:
    """Rewrite a file of one version's vectors as another version's, in constant memory."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.transform_file import transform_file, transform_shards
    from evergram.vector_files.open_embeddings import open_embeddings
    from evergram.vector_files.shards import Shards

    parts = Shards.parsed(out, shards, other_processes())
    opened = Lineage.open(lineage)
    source, target = opened.resolve(from_version), opened.resolve(as_version)
    vectors = open_embeddings(file, **columns_of([file], column))
    options: dict[str, Any] = {"progress": new_progress(), "overwrite": force}
    if parts is None:
        outcome = None
        rows = transform_file(vectors, opened, target, out, source=source, **options)
    else:
        outcome = transform_shards(vectors, opened, (source, target), parts, **options)
        rows = outcome.rows
    if not is_first_process():
        return
    dim = opened.manifest(target).dim
    how = " by the forward map, approximately" if source < target else ""
    show(
        {"file": str(out), "rows": rows, "dim": dim, "from": source, "as": target}
        | shard_facts(outcome),
        f"{rows} vectors of version {source}, written as version {target} ({dim} dims){how}: "
        f"{written_to(out, outcome)}",
    )


@vector_commands.command(
    "export-transform",
    no_args_is_help=True,
    epilog="Example: evergram vectors export-transform lineages/texts as-v0.sql --format "
    "pgvector --as v0",
)
def export_transform(
    lineage: LineageFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File or folder to write.")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="Program to write for: onnx, pgvector, duckdb or sentence-transformers.",
        ),
    ],
    as_version: As = None,
    from_version: From = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the function in SQL, or of the graph.",
            show_default="evergram_LINEAGE_as_vN",
        ),
    ] = None,
    license_: Annotated[
        str | None,
        typer.Option(
            "--license",
            help="Licence in the model card of sentence-transformers, such as apache-2.0.",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Write what reads new vectors as a past version's, for programs without Evergram."""
    from evergram.exporting.formats import export_transform as export
    from evergram.lineage.lineage import Lineage

    opened = Lineage.open(lineage)
    written = export(
        *(opened, out, form, as_version),
        source=from_version,
        name=name,
        overwrite=force,
        license=license_,
    )
    source, dim = written.dims
    facts: dict[str, Any] = {"path": str(out), "format": form, "name": written.name}
    facts |= {"version": written.source, "as": written.version}
    show(
        facts | {"dims": {"from": source, "to": dim}},
        f"Vectors of version {written.source} ({source} dims) are read as version "
        f"{written.version} ({dim} dims) by {written.name}: {out}",
    )


@vector_commands.command(
    "import", epilog="Example: evergram vectors import old.parquet --lineage lineages/texts"
)
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of vectors.")],
    lineage: LineageOption,
    name: Annotated[str, typer.Option(help="Name of the lineage.")] = "embeddings",
    column: Columns = None,
) -> None:
    """Publish embeddings, without a model, as version 0 of a new lineage.

    The file is Parquet, Arrow, .npy or safetensors.
    """
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.past_file import import_embeddings
    from evergram.vector_files.open_embeddings import open_embeddings

    vectors = open_embeddings(file, **columns_of([file], column))
    facts = import_embeddings(vectors, Lineage.create(lineage, name), progress=new_progress())
    show(
        {"lineage": str(lineage), **facts},
        f"Version 0 in {lineage}: {facts['rows']} vectors of {facts['dim']} dims, "
        f"{facts['fingerprint']}.",
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
    side: Side = None,
    as_version: As = None,
    from_version: From = None,
    shards: ShardCount = None,
    dimensions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Keep so many first coordinates, with length 1, if the version allows it."
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Write embeddings at any version to a file, or a folder, of ids and float32 vectors."""
    from evergram.lineage.lineage import Lineage, side_of
    from evergram.vector_files.shards import Shards

    parts = Shards.parsed(out, shards, other_processes())
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
    facts: dict[str, Any] = {"file": str(out), "rows": rows, "dim": dim, "side": side}
    show(
        facts | {"version": view.source, "as": view.version} | shard_facts(outcome),
        f"{rows} {side} embeddings of version {view.source}, read as version {view.version} "
        f"({dim} dims): {written_to(out, outcome)}",
    )


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
            metavar="FILE",
            help="Vectors of the version before (default: those that the lineage still stores).",
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option("--bytes", min=1, help="Bytes beside each new vector.")
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(min=0, help="Relative error that old readers may be left with."),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="The version whose rows are read as the one before.",
            show_default="newest",
        ),
    ] = None,
    side: Side = None,
    column: Columns = None,
    force: Force = False,
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
    if old is None and column:
        raise DataError("--column is of the file --old; give it, or leave --column out.")
    if old is not None:
        columns = columns_of([old], column)
        before = open_embeddings(old, **columns)
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
    more = (
        f"{rows - len(made):,} more objects of version {made.version} have no old vector, and "
        "are read by the way back."
    )
    show(
        facts,
        f"{out}: {len(made):,} objects of side {made.side}, {made.sidecar.size} bytes each "
        f"({facts['share_of_old_bytes']:.1%} of an old vector). Read as version "
        f"{made.target}, version {made.version} has a relative error of {made.error:.3f}; by "
        f"the way back alone it is {made.way_back_error:.3f}. Codes read {made.worse:.1%} of the "
        "objects worse than that.",
        *([more] if rows > len(made) else ()),
    )
