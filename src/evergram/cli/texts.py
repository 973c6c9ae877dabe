"""The commands of `evergram vectors` for texts: encode them, and change their model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from evergram.cli.app import is_json
from evergram.cli.options import Description, columns_of, command, described, new_progress
from evergram.cli.printing import Grid, paragraph, show, written_to

if TYPE_CHECKING:
    from evergram.texts.record import TextEncoderRecord

_PROMPT = described("Words before each of these.", show_default="the model's own")
_ENCODED: dict[str, Description] = {
    "texts": "TEXTS | File of ids and texts: Parquet, Arrow, CSV, TSV or JSON lines.",
    "out": "OUT | File of vectors: .parquet, .arrow or .npy.",
    "encoder": "ADDRESS | The encoder, such as sentence-transformers:NAME; docs/text.md has all.",
    "query_prompt": _PROMPT,
    "document_prompt": _PROMPT,
    "matryoshka": described(
        "DIMS | A number of first coordinates that this encoder's vectors may be cut to; may "
        "be repeated.",
        min=1,
    ),
}


@command(
    "vectors encode",
    "products.csv products.parquet --encoder sentence-transformers:all-MiniLM-L6-v2",
    **_ENCODED,
    role="What the texts are, document or query: it chooses the prompt before them.",
)
def encode(
    texts: Path,
    out: Path,
    *,
    encoder: str,
    role: Literal["document", "query"] = "document",
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    column: list[str] | None = None,
    matryoshka: list[int] | None = None,
    force: bool = False,
) -> None:
    """Encode a file of texts to a file of vectors that records its encoder.

    A run that was killed goes on with the parts that it wrote.
    """
    from evergram.migration.encoded_files import Texts, encode_file
    from evergram.texts.addresses import open_with_prompts
    from evergram.texts.text_files import read_texts

    ids, rows = read_texts(texts, **columns_of([texts], column, "text"))
    chosen = Texts(ids, rows, role)
    opened = open_with_prompts(encoder, query_prompt, document_prompt)
    more: dict[str, Any] = {"matryoshka": matryoshka or (), "overwrite": force}
    record = encode_file(chosen, opened, out, progress=new_progress(), **more)
    known = "by its weights" if record.fingerprint else "by its canaries alone"
    show(
        {"file": str(out), "rows": len(rows), **_encoder_facts(record)},
        f"{len(rows)} texts, {record.dim} dims, by {record.address} (known again {known}): "
        f"{written_to(out)}",
    )


def _encoder_facts(record: TextEncoderRecord) -> dict[str, Any]:
    """Return the keys of JSON on an encoder."""
    facts = {"dim": record.dim, "encoder": record.address, "fingerprint": record.fingerprint}
    cuts = {"matryoshka": record.matryoshka} if record.matryoshka else {}
    return {**facts, "prompts": record.prompts, **cuts}


@command(
    "vectors finish-migration",
    "products.csv new.parquet --encoder sentence-transformers:all-MiniLM-L6-v2 --kept kept "
    "--dry-run",
    **_ENCODED,
    kept="PATH | A file of kept vectors, or a folder of them, as serve --kept has; repeatable.",
    dry_run="Check the kept vectors and count; write nothing.",
)
def finish_migration(
    texts: Path,
    out: Path,
    *,
    encoder: str,
    kept: list[Path],
    dry_run: bool = False,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    column: list[str] | None = None,
    matryoshka: list[int] | None = None,
    force: bool = False,
) -> None:
    """Make the new vectors of all texts: those that were kept as they are, the rest encoded.

    A run that was killed goes on with the parts that it wrote.
    """
    from evergram.migration import encoded_files as migration
    from evergram.texts.addresses import open_with_prompts
    from evergram.texts.text_files import read_texts
    from evergram.vector_files.writers import check_writable

    check_writable(out, overwrite=force or dry_run)
    chosen = migration.Texts(*read_texts(texts, **columns_of([texts], column, "text")))
    opened = open_with_prompts(encoder, query_prompt, document_prompt)
    rest = migration.plan_rest(chosen, opened, kept)
    facts = rest.report()
    if dry_run or not is_json():
        show(facts, *_rest(facts))
    if dry_run:
        return
    more: dict[str, Any] = {"matryoshka": matryoshka or (), "overwrite": force}
    progress = new_progress()
    record = migration.encode_file(chosen, opened, out, progress=progress, known=rest, **more)
    show(
        {**facts, "file": str(out), **_encoder_facts(record)},
        f"{len(chosen.texts):,} texts, {record.dim} dims, by {record.address}: {written_to(out)}",
    )


def _rest(facts: dict[str, int | float]) -> Iterator[str]:
    """Yield what is kept, what is left to encode, and what the check says."""
    yield paragraph(
        f"{facts['texts']:,} texts: {facts['kept']:,} have a kept vector, {facts['to_encode']:,} "
        f"({facts['share_to_encode']:.1%}) are to be encoded, {facts['text_bytes']:,} bytes of "
        f"text. The file will have {facts['vector_bytes']:,} bytes of vectors."
    )
    if facts["unknown_ids"] or facts["repeated"]:
        yield paragraph(
            f"Left out: {facts['unknown_ids']:,} kept ids that no text has, {facts['repeated']:,} "
            "that an earlier file has with the same vector."
        )
    others = "these are all"
    if facts["differing"]:
        others = f"with 95 % confidence, at most {facts['differing']:.1%} of all differ"
    yield paragraph(
        f"{facts['checked']:,} kept vectors were computed again and are the same; {others}."
    )


@command(
    "vectors plan-migration",
    "old.parquet new.parquet --old-queries old-queries.parquet --new-queries new-queries.parquet",
    old="OLD | Vectors of texts by the old model.",
    new="NEW | Vectors of the same texts by the new model.",
    old_queries="Vectors of queries by the old model.",
    new_queries="Vectors of the same queries by the new model.",
    judgements="Which texts answer which query: a file or folder as BEIR or TREC has.",
    sidecar_bytes=described(
        "Bytes that a sidecar has beside each new vector.",
        min=0,
        show_default="a tenth of an old one",
    ),
    similarity="How vectors are compared.",
    tolerance=described("Share of nDCG@10 that a cheaper way may lose.", min=0, max=1),
    worth=described(
        "Let means decide, not intervals: a change pays that brings more nDCG@10.", min=0, max=1
    ),
    old_model_ends="Say that the old model will encode no more queries.",
    old_readers="Say that somebody goes on to read old vectors.",
    threshold="A threshold on scores of old vectors: count the pairs of query and text that pass "
    "it, now and for a pinned reader.",
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
    column: list[str] | None = None,
) -> None:
    """Compare the ways to another embedding model: stay, bridge, cascade, sidecar or reindex.

    Exit code 1 if there is no verdict: without judgements, or if the files cannot be judged.
    """
    from evergram.evaluation.judged import read_judgements
    from evergram.migration import migration_plan
    from evergram.migration.ways import MigrationVectors, WaySettings
    from evergram.vector_files.open_embeddings import open_embeddings

    files = [old, new, old_queries, new_queries]
    settings = WaySettings(sidecar_bytes, similarity, threshold=threshold)
    grades = None if judgements is None else read_judgements(judgements)
    columns = columns_of(files, column)
    opened = [open_embeddings(file, **columns) for file in files]
    vectors = MigrationVectors.of((opened[0], opened[1]), (opened[2], opened[3]))
    situation = migration_plan.Situation(tolerance, old_model_ends, old_readers, worth)
    report = migration_plan.plan_migration(vectors, grades, settings, situation)
    show(report, _ways_table(report), *map(paragraph, _remarks(report)))
    if report["verdict"] is None:
        raise typer.Exit(1)


def _ways_table(report: dict[str, Any]) -> Grid:
    """Return a line for each way."""
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
                *(f"{way['encoded']:,}", f"{way['bytes_a_text']:,.0f}"),
                f"{way['milliseconds']:.2f}",
            ]
        )
    kind = "judged queries" if report["judged"] else "queries, none judged"
    return Grid(f"{report['texts']:,} texts, {report['queries']:,} {kind}", header, lines)


def _short(share: float) -> str:
    """Return a share with two digits, ".31" or "1.0"."""
    return f"{share:.2f}".removeprefix("0")[:3]


def _remarks(report: dict[str, Any]) -> Iterator[str]:
    """Yield what the figures leave out, and the verdict with its reasons."""
    if report["repeated"]:
        yield f"{report['repeated']} queries repeat another, and count once with it."
    if report["incomplete"]:
        yield (
            f"{report['incomplete']} judged queries are left out: {report['absent']} of their "
            "relevant texts are not among the texts."
        )
    side = report["ways"]["sidecar"]
    yield (
        f"The sidecar has {side['sidecar_bytes']:.0f} bytes beside each new vector "
        f"({side['share_of_old_bytes']:.1%} of an old one), and leaves a relative error of "
        f"{side['measured_error']:.3f} of these texts, to which it was fitted."
    )
    zeros = [f"{count} of {name}" for name, count in report["zeros"].items() if count]
    if zeros:
        yield (
            f"Vectors of zeros: {', '.join(zeros)}. No model gives them, but a call that failed "
            "may: look at how the files were made."
        )
    if report["lengths_ignored"]:
        yield (
            "Vectors differ in length, and these figures are by cosine. Searches are by inner "
            'product unless they say otherwise: search with the metric "cosine", or compare with '
            "--similarity dot."
        )
    pinned = report["ways"]["pinned"]
    if "pairs_then" in pinned:
        then = pinned["pairs_then"]
        advice = "give these calibrated scores" if then else "see whether the threshold is right"
        yield (
            f"Of scores of a query and a text {then or 'none'} pass the threshold of "
            f"{report['settings']['threshold']:g} by the old vectors, and {pinned['pairs_now']:,} "
            f"where both are read back, as pinned readers get them: {advice}."
        )
    yield f"Verdict: {report['verdict'] or 'none'}."
    yield from (f"- {reason}" for reason in report["reasons"])
