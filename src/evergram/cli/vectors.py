"""The commands of `evergram vectors`: vector files from any model, and text files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import typer

from evergram.cli import options
from evergram.cli.options import columns_of, command, described, new_progress, open_lineage
from evergram.cli.printing import Grid, number, paragraph, probes_table, show
from evergram.errors import DataError

_FILE = "FILE | File of vectors."


@command(
    "vectors align",
    "old.parquet new.parquet --lineage lineages/texts",
    old="OLD | File of old vectors, or the number of the newest version (or 'newest').",
    new="NEW | File of new vectors.",
    transform="Kind of the backward transform: linear, affine, orthogonal, low_rank, or scaled "
    "(orthogonal, times a number).",
    rank=described("Rank of a low_rank transform.", min=1, show_default="32"),
    held_out="Share of the common objects to measure the transform on; the others fit it.",
    name=described("Name of a new lineage.", show_default="embeddings"),
    max_error=described(
        "Refuse a larger relative error on held-out objects. An error no better than chance is "
        "always refused, except with inf.",
        min=0,
    ),
)
def align(
    old: str,
    new: Path,
    *,
    lineage: str,
    transform: str = "linear",
    rank: int | None = None,
    held_out: float = 0.1,
    name: str | None = None,
    column: list[str] | None = None,
    max_error: float | None = None,
    max_loss: float | None = None,
    allow_small_overlap: bool = False,
    strict_probes: bool = False,
    no_promote: bool = False,
) -> None:
    """Publish a file of vectors as the next version, with a backward transform to an older file.

    The two files (Parquet, Arrow or .npy) have ids in common. No model is needed.
    """
    from evergram.releasing.align import AlignSettings
    from evergram.releasing.align import align as align_files
    from evergram.releasing.past_file import open_or_create
    from evergram.vector_files.open_embeddings import open_embeddings

    target = open_or_create(lineage, name)
    version = None
    if not Path(old).exists() and not Path(old).suffix:
        version = int(old) if old.isdecimal() else target.resolve(old)
    columns = columns_of([new] if version is not None else [Path(old), new], column)
    past = open_embeddings(Path(old), **columns) if version is None else version
    vectors = open_embeddings(new, **columns)
    scaled = transform == "scaled"
    kind = "orthogonal" if scaled else transform
    settings = AlignSettings(kind, rank, scaled, held_out, allow_small_overlap=allow_small_overlap)
    more: Any = {"max_error": max_error, "max_loss": max_loss, "promote": not no_promote}
    more["strict_probes"] = strict_probes
    facts = align_files(past, vectors, target, settings, progress=new_progress(), **more)
    probes = [probes_table(facts["probes"])] if facts["probes"] else []
    show({"lineage": str(lineage), **facts}, *_alignment(lineage, facts), *probes)


_MAPPINGS = {
    "transformed": "new, transformed",
    "as_is": "new, as it is",
    "in_sample": "fitted to these too",
    "chance": "objects mixed up",
}


def _alignment(lineage: str, facts: dict[str, Any]) -> Iterator[str | Grid]:
    """Yield what was aligned, the quality on held-out objects, and its distance from chance."""
    alignment = facts["alignment"]
    pairs, readings, chance = (alignment[key] for key in ("pairs", "held_out", "chance"))
    by = ", paired by the numbers of their rows" if pairs["by_row_number"] else ""
    yield (
        f"Version {facts['version']} in {lineage}: {alignment['dims']['new']} dims, back to "
        f"{alignment['dims']['old']} by a transform (kind: {alignment['transform']['kind']}).\n"
        f"{pairs['common']} objects in common{by}: {pairs['fitted']} fitted to, "
        f"{pairs['held_out']} held out."
    )
    if pairs["only_old"]:
        yield (
            f"Readers of the old vectors will not find the {pairs['only_old']} of the old file "
            "alone: the index has the objects of the new file."
        )
    header = ["", "cosine", "relative error", "overlap@10", "own queries"]
    names = list(readings["transformed"])
    lines = [[_MAPPINGS[name], *(number(v[n]) for n in names)] for name, v in readings.items()]
    yield Grid("What held-out objects keep", header, lines)
    yield (
        f"{'Better' if chance['beaten'] else 'No better'} than chance: the error is "
        f"{1 - chance['ratio']:.1%} below that of the same transform with the objects mixed up, "
        f"by {chance['deviations']:.1f} standard deviations."
    )


@command(
    "vectors transform",
    "new.parquet --lineage lineages/texts --as v0 --out as-v0.parquet",
    file=_FILE,
    as_="VERSION | The version or label to write.",
    out="File to write; its suffix says the format.",
)
def transform(
    file: Path,
    *,
    lineage: str,
    as_: str,
    out: Path,
    from_: str | None = None,
    column: list[str] | None = None,
    force: bool = False,
) -> None:
    """Rewrite a file of one version's vectors as another version's, in constant memory."""
    from evergram.releasing.past_file import transform_file
    from evergram.vector_files.open_embeddings import open_embeddings

    opened = open_lineage(lineage)
    source, target = opened.resolve(from_), opened.resolve(as_)
    vectors = open_embeddings(file, **columns_of([file], column))
    options: dict[str, Any] = {"progress": new_progress(), "overwrite": force}
    rows = transform_file(vectors, opened, target, out, source=source, **options)
    dim = opened.manifest(target).dim
    show({"file": str(out), "rows": rows, "dim": dim, "from": source, "as": target})


@command(
    "vectors export-transform",
    "lineages/texts as-v0.sql --format pgvector --as v0",
    out="OUT | File or folder to write.",
    format_="Program to write for: onnx, pgvector, duckdb or sentence-transformers.",
    name=described(
        "Name of the function in SQL, or of the graph.", show_default="evergram_LINEAGE_as_vN"
    ),
)
def export_transform(
    lineage: str,
    out: Path,
    *,
    format_: str,
    as_: str | None = None,
    from_: str | None = None,
    name: str | None = None,
    force: bool = False,
) -> None:
    """Export a transform to a past version, for programs without Evergram."""
    from evergram.exporting.formats import export_transform as export

    more: dict[str, Any] = {"name": name, "overwrite": force}
    written = export(open_lineage(lineage), out, format_, as_, source=from_, **more)
    facts: dict[str, Any] = {"path": str(out), "format": format_, "name": written.name}
    facts |= {"version": written.source, "as": written.version}
    show(facts | {"dims": dict(zip(("from", "to"), written.dims, strict=True))})


@command(
    "vectors import",
    "old.parquet --lineage lineages/texts",
    file=_FILE,
    name="Name of the lineage.",
)
def import_(
    file: Path, *, lineage: str, name: str = "embeddings", column: list[str] | None = None
) -> None:
    """Publish embeddings, without a model, as version 0 of a new lineage.

    The file is Parquet, Arrow or .npy.
    """
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.past_file import import_embeddings
    from evergram.vector_files.open_embeddings import open_embeddings

    vectors = open_embeddings(file, **columns_of([file], column))
    facts = import_embeddings(vectors, Lineage.create(lineage, name), progress=new_progress())
    show({"lineage": str(lineage), **facts})


@command(
    "vectors export",
    "lineages/shop candidates.parquet --side candidate --as stable",
    out=(
        "OUT | File to write; its suffix says the format: .parquet, .arrow, or .npy (its ids in "
        "a file beside it)."
    ),
    dimensions=described(
        "Keep so many first coordinates, with length 1, if the version allows it.", min=1
    ),
)
def export(
    lineage: str,
    out: Path,
    *,
    side: str | None = None,
    as_: str | None = None,
    from_: str | None = None,
    dimensions: int | None = None,
    force: bool = False,
) -> None:
    """Write embeddings at any version to a file of ids and float32 vectors."""
    from evergram.lineage.lineage import side_of

    opened = open_lineage(lineage)
    view = opened.view(as_, from_)
    side = side_of(opened.manifest(view.source).embeddings, str(opened.path), side)
    rows = view.export(out, side, overwrite=force, dimensions=dimensions)
    dim = view.dim if dimensions is None else dimensions
    facts: dict[str, Any] = {"file": str(out), "rows": rows, "dim": dim, "side": side}
    show(facts | {"version": view.source, "as": view.version})


@command(
    "vectors sidecar",
    "lineages/texts v1.safetensors --old old.parquet --error 0.1",
    out="OUT | File to write, .safetensors.",
    old="FILE | Vectors of the version before (default: those that the lineage still stores).",
    bytes_=described("Bytes to store for each object.", min=1),
    error=described("Largest relative error for old readers; chooses the bytes.", min=0),
    version=described(
        "VERSION | The version whose rows are read as the one before.", show_default="newest"
    ),
)
def make(
    lineage: str,
    out: Path,
    *,
    old: Path | None = None,
    bytes_: int | None = None,
    error: float | None = None,
    version: str | None = None,
    side: str | None = None,
    column: list[str] | None = None,
    force: bool = False,
) -> None:
    """Write a file with a few bytes per object, so that old readers get nearly the old vectors.

    `evergram serve --sidecar OUT` and `Reader.open(…, sidecars=[OUT])` read objects by it.
    """
    from evergram.retrieval.version_sidecar import make_sidecar
    from evergram.vector_files.open_embeddings import open_embeddings

    opened = open_lineage(lineage)
    if out.suffix.lower() != ".safetensors":
        raise DataError(f"{out} must end in .safetensors, as a sidecar is such a file.")
    if out.exists() and not force:
        raise DataError(f"{out} is there already; --force overwrites it.")
    if old is None and column:
        raise DataError("--column is of the file --old; give it, or leave --column out.")
    before = None if old is None else open_embeddings(old, **columns_of([old], column))
    made = make_sidecar(
        opened,
        before,
        version=None if version is None else opened.resolve(version),
        side=side,
        size=bytes_,
        error=error,
        progress=partial(options.print_progress, what="objects"),
    )
    made.save(out)
    rows = open_embeddings(opened.stored(made.side, made.version)).rows
    size = made.sidecar.size
    figures = ("version", "target", "side", "error", "transform_error", "worse")
    facts = {"file": str(out), **{name: getattr(made, name) for name in figures}}
    facts |= {"objects": len(made), "without_codes": rows - len(made), "bytes": size}
    show(facts | {"share_of_old_bytes": size / (4 * len(made.sidecar.weight))})


# Texts: encoding them, and changing their model


_PROMPT = described("Text to put before each of them.", show_default="the model's own")


@command(
    "vectors encode",
    "products.csv products.parquet --encoder sentence-transformers:all-MiniLM-L6-v2",
    texts="TEXTS | File of ids and texts: Parquet, Arrow, CSV, TSV or JSON lines.",
    out="OUT | File of vectors: .parquet, .arrow or .npy.",
    encoder="ADDRESS | The encoder, such as sentence-transformers:NAME; docs/text.md has all.",
    role="What the texts are, document or query; this chooses the prompt.",
    query_prompt=_PROMPT,
    document_prompt=_PROMPT,
    matryoshka=described(
        "DIMS | A number of first coordinates that this encoder's vectors may be cut to; may "
        "be repeated.",
        min=1,
    ),
    kept="PATH | Vectors that this encoder has already computed: a file, or the folder of serve "
    "--kept; repeatable.",
    dry_run="Check the kept vectors and count; write nothing.",
)
def encode(
    texts: Path,
    out: Path,
    *,
    encoder: str,
    role: Literal["document", "query"] = "document",
    kept: list[Path] | None = None,
    dry_run: bool = False,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    column: list[str] | None = None,
    matryoshka: list[int] | None = None,
    force: bool = False,
) -> None:
    """Encode a file of texts to a file of vectors that records its encoder.

    Vectors of --kept are reused, and the other texts are encoded. After an interruption, the same
    command resumes.
    """
    from evergram.data.reading.interactions import read_texts
    from evergram.migration.encoded_files import Texts, encode_file, plan_rest
    from evergram.texts.addresses import open_with_prompts
    from evergram.vector_files.open_embeddings import check_writable

    check_writable(out, overwrite=force or dry_run)
    ids, rows = read_texts(texts, **columns_of([texts], column, "text"))
    chosen = Texts(ids, rows, role)
    opened, progress = open_with_prompts(encoder, query_prompt, document_prompt), new_progress()
    rest = plan_rest(chosen, opened, kept) if kept else None
    facts: dict[str, Any] = {"texts": len(rows), **({} if rest is None else rest.counts)}
    if not dry_run:
        more: dict[str, Any] = {"matryoshka": matryoshka or (), "overwrite": force, "known": rest}
        record = encode_file(chosen, opened, out, progress=progress, **more)
        facts |= {"file": str(out), "dim": record.dim, "encoder": record.address}
        facts |= {"fingerprint": record.fingerprint, "prompts": record.prompts}
        facts |= {"matryoshka": record.matryoshka} if record.matryoshka else {}
    show(facts)


@command(
    "vectors diagnose",
    "lance-table:vectors#table=documents&v0=embedding --out models.parquet",
    source="STORE_OR_FILE | A store's address, or a file of vectors.",
    known="FILE | Vectors of some of the ids whose model is known.",
    out="FILE.parquet | Write the model of each row, from 0, and its probability.",
)
def diagnose(
    source: str,
    *,
    known: Path | None = None,
    out: Path | None = None,
    column: list[str] | None = None,
    force: bool = False,
) -> None:
    """Tell whether the vectors of an index come from one model or several, and from which.

    Exit code 1 if there are several models.
    """
    import pyarrow.parquet as pq

    from evergram.atomic_files import replacing_path
    from evergram.migration.mixed_models import VectorSource, diagnose_vectors, source_of_store
    from evergram.stores.open_store import open_store
    from evergram.vector_files.open_embeddings import SUFFIXES, check_writable, open_embeddings

    if out is not None:
        if out.suffix.lower() != ".parquet":
            raise DataError(f"{out} must end in .parquet, as models are written to such a file.")
        check_writable(out, overwrite=force)
    path = Path(source)
    is_file = path.suffix.lower() in SUFFIXES
    if not is_file and ":" not in source and not path.is_dir():
        raise DataError(f"{source} is not a store or a file in {', '.join(SUFFIXES)}; give one.")
    files = [*([path] if is_file else []), *([] if known is None else [known])]
    if column and not files:
        raise DataError("--column is of files; the address of a store names its own columns.")
    opened = [open_embeddings(file, **columns_of(files, column)) for file in files]
    with ExitStack() as closing:
        if is_file:
            vectors = VectorSource(source, opened[0].rows, opened[0].blocks)
        else:
            vectors = source_of_store(closing.enter_context(open_store(source)))
        progress = partial(options.print_progress, what="rows read")
        found = diagnose_vectors(vectors, opened[-1] if known else None, progress)
        facts: dict[str, Any] = found.report | ({} if out is None else {"file": str(out)})
        if out is not None:
            tables, done = found.models(vectors), 0
            first = next(tables)
            with replacing_path(out) as part, pq.ParquetWriter(str(part), first.schema) as writer:
                for table in chain([first], tables):
                    writer.write_table(table)
                    done += len(table)
                    options.print_progress(done, vectors.rows, "rows written")
    show(facts, *_models(facts))
    if facts["verdict"] != "one":
        raise typer.Exit(1)


def _models(facts: dict[str, Any]) -> Iterator[str | Grid]:
    """Yield the verdict and its evidence."""
    count, shown = len(facts["shares"]), facts["evidence"]
    shares = [(str(i), share) for i, share in enumerate(facts["shares"])]
    lines = [[i, f"{share:.1%}", f"{share * facts['rows']:,.0f}"] for i, share in shares]
    models = "one model" if count == 1 else f"{count} models"
    yield f"{facts['source']}: {models}, by {facts['by']}"
    yield Grid("", ["model", "share", "rows, about"], lines)
    yield paragraph(
        f"{facts['sampled']:,} of {facts['rows']:,} rows looked at: {facts['zeros']} of zeros and "
        f"{facts['repeated']} repeated ones left out, {facts['compared']} with a known vector."
    )
    if shown:
        figures = ", ".join(f"{name.replace('_', ' ')} {number(v)}" for name, v in shown.items())
        yield paragraph(f"Evidence for several models: {figures}.")


@command(
    "vectors plan-migration",
    "old.parquet new.parquet --old-queries old-queries.parquet --new-queries new-queries.parquet",
    old="OLD | Vectors of texts by the old model.",
    new="NEW | Vectors of the same texts by the new model.",
    old_queries="Vectors of queries by the old model.",
    new_queries="Vectors of the same queries by the new model.",
    judgements="Which texts answer which query: a file or folder in the format of BEIR or TREC.",
    sidecar_bytes=described(
        "Bytes that a sidecar stores for each text.",
        min=0,
        show_default="a tenth of an old vector's",
    ),
    similarity="How vectors are compared.",
    tolerance=described("Share of nDCG@10 that a cheaper way may lose.", min=0, max=1),
    worth=described(
        "Decide by means, not bounds: a change must gain more nDCG@10 than this.", min=0, max=1
    ),
    old_model_ends="The old model will no longer be available to encode queries.",
    old_readers="Some programs will go on reading old vectors.",
    threshold="A threshold on scores of old vectors: count the pairs of query and text that reach "
    "it, now and as a pinned reader would see them.",
    rates="FILE.toml | Sizes, speed and prices, to show what each way costs (docs/migrate.md).",
)
def plan_migration(
    old: Path,
    new: Path,
    *,
    old_queries: Path,
    new_queries: Path,
    judgements: Path | None = None,
    sidecar_bytes: int | None = None,
    similarity: Literal["cosine", "dot"] = "cosine",
    tolerance: float = 0.01,
    worth: float | None = None,
    old_model_ends: bool = False,
    old_readers: bool = False,
    threshold: float | None = None,
    rates: Path | None = None,
    column: list[str] | None = None,
) -> None:
    """Compare the ways to another embedding model: stay, bridge, cascade, sidecar or reindex.

    Exit code 1 if there is no verdict: without judgements, or if the files cannot be judged.
    """
    from evergram.evaluation.judged import read_judgements
    from evergram.migration import migration_plan
    from evergram.migration.migration_plan import MigrationVectors, Situation, WaySettings
    from evergram.migration.price import Rates
    from evergram.vector_files.open_embeddings import open_embeddings

    files = [old, new, old_queries, new_queries]
    settings = WaySettings(sidecar_bytes, similarity, threshold=threshold)
    known = None if rates is None else Rates.load(rates)
    grades = None if judgements is None else read_judgements(judgements)
    opened = [open_embeddings(file, **columns_of(files, column)) for file in files]
    vectors = MigrationVectors.of((opened[0], opened[1]), (opened[2], opened[3]))
    situation = Situation(tolerance, old_model_ends, old_readers, worth)
    report = migration_plan.plan_migration(vectors, grades, settings, situation, known)
    show(report, _ways_table(report), *_costs(report), *map(paragraph, _remarks(report)))
    if report["verdict"] is None:
        raise typer.Exit(1)


def _ways_table(report: dict[str, Any]) -> Grid:
    figures = [*(["ndcg@10", "recall@100"] if report["judged"] else []), "agreement@10"]
    # Split headers, so that intervals fit into 80 columns.
    names = [name.replace("agreement", "agree-\nment").replace("@", "\n@") for name in figures]
    lines = [
        [
            name,
            *map(_interval, map(way.get, figures)),
            f"{way['encoded']:,}",
            f"{way['bytes_a_text']:,.0f}",
            f"{way['milliseconds']:.2f}",
        ]
        for name, way in report["ways"].items()
    ]
    kind = "judged queries" if report["judged"] else "queries, none judged"
    title = f"{report['texts']:,} texts, {report['queries']:,} {kind}"
    return Grid(title, ["method", *names, "encoded", "bytes a\ntext", "ms a\nquery"], lines)


def _interval(figure: dict[str, float]) -> str:
    """Format a mean, and its interval with two digits: ".31–1.0"."""
    ends = [f"{figure[end]:.2f}".removeprefix("0")[:3] for end in ("low", "high")]
    return f"{figure['mean']:.3f}\n{'–'.join(ends)}"


def _costs(report: dict[str, Any]) -> Iterator[str | Grid]:
    """Yield what each way costs, and which of the rates were measured."""
    if (rates := report["rates"]) is None:
        return
    costs = {name: way["cost"] for name, way in report["ways"].items()}
    digits = {key: 2 * (key in ("hours", "money")) for key in costs["reindex"]}
    lines = [[name, *(f"{c[k]:,.{n}f}" for k, n in digits.items())] for name, c in costs.items()]
    title = f"Texts to encode, of {rates['texts']:,}, for {rates['queries']:,} queries"
    yield Grid(title, ["method", *digits], lines)
    for key, how in (("tokens_per_text", "tokens_by"), ("texts_per_second", "speed_by")):
        if how in rates:
            yield paragraph(f"{key.replace('_', ' ')}: {rates[key]:,.1f}, {rates[how]}.")


def _remarks(report: dict[str, Any]) -> Iterator[str]:
    """Yield the caveats, then the verdict with its reasons."""
    if report["incomplete"]:
        yield (
            f"{report['incomplete']} judged queries are left out: {report['absent']} of their "
            "relevant texts are not among the texts."
        )
    zeros = [f"{count} of {name}" for name, count in report["zeros"].items() if count]
    if zeros:
        yield (
            f"Vectors of zeros: {', '.join(zeros)}. No model gives them, but a call that failed "
            "may: look at how the files were made."
        )
    yield f"Verdict: {report['verdict'] or 'none'}."
    yield from (f"- {reason}" for reason in report["reasons"])
