"""The commands of `evergram vectors` for texts: encode them, and change their model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import typer

from evergram.cli.options import columns_of, command, described, new_progress
from evergram.cli.printing import Grid, paragraph, show

_PROMPT = described("Words before each of these.", show_default="the model's own")


@command(
    "vectors encode",
    "products.csv products.parquet --encoder sentence-transformers:all-MiniLM-L6-v2",
    texts="TEXTS | File of ids and texts: Parquet, Arrow, CSV, TSV or JSON lines.",
    out="OUT | File of vectors: .parquet, .arrow or .npy.",
    encoder="ADDRESS | The encoder, such as sentence-transformers:NAME; docs/text.md has all.",
    role="What the texts are, document or query: it chooses the prompt before them.",
    query_prompt=_PROMPT,
    document_prompt=_PROMPT,
    matryoshka=described(
        "DIMS | A number of first coordinates that this encoder's vectors may be cut to; may "
        "be repeated.",
        min=1,
    ),
    kept="PATH | A file of vectors that this encoder made already, or a folder of them, as serve "
    "--kept has; repeatable.",
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

    Kept vectors are taken as they are, and the rest is encoded. A run that was killed goes on with
    the parts that it wrote.
    """
    from evergram.migration.encoded_files import Texts, encode_file, plan_rest
    from evergram.texts.addresses import open_with_prompts
    from evergram.texts.text_files import read_texts
    from evergram.vector_files.writers import check_writable

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
