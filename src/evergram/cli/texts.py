"""The commands of `evergram vectors` for texts: encode them, and change their model."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from evergram.cli.app import is_json, vector_commands
from evergram.cli.options import Columns, Force, columns_of, new_progress
from evergram.cli.printing import dump, file_written, paragraph, show, table
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.texts.record import TextEncoderRecord

TextFile = Annotated[
    Path,
    typer.Argument(
        metavar="TEXTS", help="File of ids and texts: Parquet, Arrow, CSV, TSV or JSON lines."
    ),
]
VectorFile = Annotated[
    Path, typer.Argument(metavar="OUT", help="File of vectors: .parquet, .arrow or .npy.")
]
EncoderAddress = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="The encoder, such as sentence-transformers:NAME; docs/text.md has all.",
    ),
]
RoleOfTexts = Annotated[
    str,
    typer.Option(help="What the texts are, document or query: it chooses the prompt before them."),
]
Prompt = Annotated[
    str | None, typer.Option(show_default="the model's own", help="Words before each of these.")
]
Matryoshka = Annotated[
    list[int] | None,
    typer.Option(
        min=1,
        metavar="DIMS",
        help="A number of first coordinates that this encoder's vectors may be cut to; may be "
        "repeated.",
    ),
]


@vector_commands.command(
    epilog="Example: evergram vectors encode products.csv products.parquet --encoder "
    "sentence-transformers:all-MiniLM-L6-v2"
)
def encode(
    texts: TextFile,
    out: VectorFile,
    encoder: EncoderAddress,
    role: RoleOfTexts = "document",
    query_prompt: Prompt = None,
    document_prompt: Prompt = None,
    column: Columns = None,
    matryoshka: Matryoshka = None,
    force: Force = False,
) -> None:
    """Encode a file of texts to a file of vectors that records its encoder.

    A run that was killed goes on with the parts that it wrote.
    """
    from evergram.migration.encoded_files import Texts, encode_file
    from evergram.texts.addresses import open_with_prompts
    from evergram.texts.text_files import read_texts

    if role not in ("document", "query"):
        raise DataError(
            f"--role is {role!r}; it is document or query"
            f"{did_you_mean(role, ('document', 'query'))}."
        )
    ids, rows = read_texts(texts, **columns_of([texts], column, "text"))
    chosen = Texts(ids, rows, cast(Literal["document", "query"], role))
    opened = open_with_prompts(encoder, query_prompt, document_prompt)
    record = encode_file(
        *(chosen, opened, out),
        matryoshka=matryoshka or (),
        progress=new_progress(),
        overwrite=force,
    )
    known = "by its weights" if record.fingerprint else "by its canaries alone"
    show(
        {"file": str(out), "rows": len(rows), **_encoder_facts(record)},
        f"{len(rows)} texts, {record.dim} dims, by {record.address} (known again {known}): "
        f"{file_written(out)}",
    )


def _encoder_facts(record: TextEncoderRecord) -> dict[str, Any]:
    """Return the keys of JSON on an encoder."""
    facts = {"dim": record.dim, "encoder": record.address, "fingerprint": record.fingerprint}
    cuts = {"matryoshka": record.matryoshka} if record.matryoshka else {}
    return {**facts, "prompts": record.prompts, **cuts}


@vector_commands.command(
    "finish-migration",
    epilog="Example: evergram vectors finish-migration products.csv new.parquet --encoder "
    "sentence-transformers:all-MiniLM-L6-v2 --kept kept --dry-run",
)
def finish_migration(
    texts: TextFile,
    out: VectorFile,
    encoder: EncoderAddress,
    kept: Annotated[
        list[Path],
        typer.Option(
            metavar="PATH",
            help="A file of kept vectors, or a folder of them, as serve --kept has; repeatable.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the kept vectors and count; write nothing.")
    ] = False,
    check: Annotated[
        int, typer.Option(min=1, help="How many kept vectors are computed again and compared.")
    ] = 256,
    unrecorded: Annotated[
        bool,
        typer.Option(
            "--unrecorded", help="Take kept files, too, that do not say which encoder made them."
        ),
    ] = False,
    query_prompt: Prompt = None,
    document_prompt: Prompt = None,
    column: Columns = None,
    matryoshka: Matryoshka = None,
    force: Force = False,
) -> None:
    """Make the new vectors of all texts: those that were kept as they are, the rest encoded.

    A run that was killed goes on with the parts that it wrote.
    """
    from evergram.migration import encoded_files as migration
    from evergram.migration.encoded_files import Texts
    from evergram.texts.addresses import open_with_prompts
    from evergram.texts.text_files import read_texts
    from evergram.vector_files.writers import check_writable

    check_writable(out, overwrite=force or dry_run)
    chosen = Texts(*read_texts(texts, **columns_of([texts], column, "text")))
    opened = open_with_prompts(encoder, query_prompt, document_prompt)
    rest = migration.plan_rest(chosen, opened, kept, check=check, unrecorded=unrecorded)
    facts = rest.report()
    if not is_json():
        _print_rest(facts)
    if dry_run:
        if is_json():
            dump(facts)
        return
    record = migration.finish_migration(
        *(chosen, opened, rest, out),
        matryoshka=matryoshka or (),
        progress=new_progress(),
        overwrite=force,
    )
    show(
        {**facts, "file": str(out), **_encoder_facts(record)},
        f"{rest.texts:,} texts, {record.dim} dims, by {record.address}: {file_written(out)}",
    )


def _print_rest(facts: dict[str, int | float]) -> None:
    """Print what is kept, what is left to encode, and what the check says."""
    paragraph(
        f"{facts['texts']:,} texts: {facts['kept']:,} have a kept vector, {facts['to_encode']:,} "
        f"({facts['share_to_encode']:.1%}) are to be encoded, {facts['text_bytes']:,} bytes of "
        f"text. The file will have {facts['vector_bytes']:,} bytes of vectors."
    )
    if facts["unknown_ids"] or facts["repeated"]:
        paragraph(
            f"Left out: {facts['unknown_ids']:,} kept ids that no text has, {facts['repeated']:,} "
            "that an earlier file has with the same vector."
        )
    others = "these are all"
    if facts["differing"]:
        others = f"with 95 % confidence, at most {facts['differing']:.1%} of all differ"
    paragraph(f"{facts['checked']:,} kept vectors were computed again and are the same; {others}.")


class Similarity(StrEnum):
    """How two vectors are compared."""

    cosine = "cosine"
    dot = "dot"


@vector_commands.command(
    "plan-migration",
    epilog="Example: evergram vectors plan-migration old.parquet new.parquet --old-queries "
    "old-queries.parquet --new-queries new-queries.parquet",
)
def plan_migration(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Vectors of texts by the old model.")],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="Vectors of the same texts by the new model.")
    ],
    old_queries: Annotated[Path, typer.Option(help="Vectors of queries by the old model.")],
    new_queries: Annotated[
        Path, typer.Option(help="Vectors of the same queries by the new model.")
    ],
    judgements: Annotated[
        Path | None,
        typer.Option(help="Which texts answer which query: a file or folder as BEIR or TREC has."),
    ] = None,
    pairs: Annotated[float, typer.Option(help="Share of the texts to fit the way back to.")] = 1.0,
    depth: Annotated[int, typer.Option(help="How many old hits a cascade re-ranks.")] = 200,
    sidecar_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Bytes that a sidecar has beside each new vector.",
            show_default="a tenth of an old one",
        ),
    ] = None,
    sidecar_error: Annotated[
        float | None,
        typer.Option(min=0, help="Relative error that a sidecar may leave, rounding included."),
    ] = None,
    similarity: Annotated[
        Similarity, typer.Option(help="How vectors are compared.")
    ] = Similarity.cosine,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="Share of nDCG@10 that a cheaper way may lose.")
    ] = 0.01,
    worth: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Let means decide, not intervals: a change pays that brings more nDCG@10.",
        ),
    ] = None,
    old_model_ends: Annotated[
        bool,
        typer.Option(
            "--old-model-ends", help="Say that the old model will encode no more queries."
        ),
    ] = False,
    old_readers: Annotated[
        bool, typer.Option("--old-readers", help="Say that somebody goes on to read old vectors.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="A threshold on scores of old vectors: count the pairs of query and text that "
            "pass it, now and for a pinned reader."
        ),
    ] = None,
    column: Columns = None,
) -> None:
    """Compare the ways to another embedding model: stay, bridge, cascade, sidecar or reindex.

    Exit code 1 if there is no verdict: without judgements, or if the files cannot be judged.
    """
    from evergram.evaluation.judged.beir_files import read_judgements
    from evergram.migration import migration_plan
    from evergram.migration.migration_plan import Situation
    from evergram.migration.ways import MigrationVectors, WaySettings
    from evergram.vector_files.open_embeddings import open_embeddings

    files = [old, new, old_queries, new_queries]
    settings = WaySettings(pairs, depth, sidecar_bytes, sidecar_error, similarity.value)
    settings = replace(settings, threshold=threshold)
    grades = None if judgements is None else read_judgements(judgements)
    columns = columns_of(files, column)
    opened = [open_embeddings(file, **columns) for file in files]
    vectors = MigrationVectors.of((opened[0], opened[1]), (opened[2], opened[3]))
    situation = Situation(tolerance, old_model_ends, old_readers, worth)
    report = migration_plan.plan_migration(vectors, grades, settings, situation)
    if is_json():
        dump(report)
    else:
        _print_plan(report)
    if report["verdict"] is None:
        raise typer.Exit(1)


def _print_plan(report: dict[str, Any]) -> None:
    """Print a line for each way, and the verdict with its reasons."""
    measures = ["ndcg@10", "recall@100"] if report["judged"] else []
    figures_of = [*measures, "agreement@10"]
    # In lines of their own, so that intervals are whole in 80 columns.
    names = [name.replace("agreement", "agree-\nment").replace("@", "\n@") for name in figures_of]
    header = ["method", *names, "encoded", "bytes a\ntext", "ms a\nquery"]
    lines = []
    for name, way in report["ways"].items():
        figures = [way[key] for key in figures_of]
        lines.append(
            [
                name,
                *(f"{f['mean']:.3f}\n{_short(f['low'])}–{_short(f['high'])}" for f in figures),
                f"{way['encoded']:,}",
                f"{way['bytes_a_text']:,.0f}",
                f"{way['milliseconds']:.2f}",
            ]
        )
    kind = "judged queries" if report["judged"] else "queries, none judged"
    table(f"{report['texts']:,} texts, {report['queries']:,} {kind}", header, lines)
    if report["repeated"]:
        paragraph(f"{report['repeated']} queries repeat another, and count once with it.")
    if report["incomplete"]:
        paragraph(
            f"{report['incomplete']} judged queries are left out: {report['absent']} of their "
            "relevant texts are not among the texts."
        )
    side = report["ways"]["sidecar"]
    paragraph(
        f"The sidecar has {side['sidecar_bytes']:.0f} bytes beside each new vector "
        f"({side['share_of_old_bytes']:.1%} of an old one), and leaves a relative error of "
        f"{side['measured_error']:.3f} of these texts, to which it was fitted."
    )
    zeros = [f"{count} of {name}" for name, count in report["zeros"].items() if count]
    if zeros:
        paragraph(
            f"Vectors of zeros: {', '.join(zeros)}. No model gives them, but a call that failed "
            "may: look at how the files were made."
        )
    if report["lengths_ignored"]:
        paragraph(
            "Vectors differ in length, and these figures are by cosine. Searches are by inner "
            'product unless they say otherwise: search with the metric "cosine", or compare with '
            "--similarity dot."
        )
    pinned = report["ways"]["pinned"]
    if "pairs_then" in pinned:
        then = pinned["pairs_then"]
        advice = "give these calibrated scores" if then else "see whether the threshold is right"
        paragraph(
            f"Of scores of a query and a text {then or 'none'} pass the threshold of "
            f"{report['settings']['threshold']:g} by the old vectors, and {pinned['pairs_now']:,} "
            f"where both are read back, as pinned readers get them: {advice}."
        )
    paragraph(f"Verdict: {report['verdict'] or 'none'}.")
    for reason in report["reasons"]:
        paragraph(f"- {reason}")


def _short(share: float) -> str:
    """Return a share with two digits, ".31" or "1.0"."""
    return f"{share:.2f}".removeprefix("0")[:3]
