"""Commands that prepare what others read: corpora beyond memory, and texts as vectors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from evergram.cli.options import Force, IdColumn, Json, app, new_progress
from evergram.cli.printing import dump, file_written
from evergram.errors import DataError

Sources = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE...", help="Files, folders, globs or addresses (s3://…)."),
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")]
Kind = Annotated[str, typer.Option(help="What the source is: table, or a kind of a recipe's data.")]
Column = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE=NAME", help="Name of the files' column; repeatable."),
]
QueryFeatures = Annotated[
    list[str] | None, typer.Option(metavar="PATH", help="Features of queries; repeatable.")
]
CandidateFeatures = Annotated[
    list[str] | None, typer.Option(metavar="PATH", help="Features of candidates; repeatable.")
]
SharedIds = Annotated[
    bool, typer.Option("--shared-ids", help="Query and candidate ids name the same things.")
]
Unique = Annotated[
    bool, typer.Option("--unique", help="Keep the first interaction of each pair alone.")
]
Core = Annotated[
    int, typer.Option(metavar="K", help="Keep queries and candidates with K interactions each.")
]
MinimumValue = Annotated[float | None, typer.Option(help="Leave out smaller values.")]
Append = Annotated[bool, typer.Option("--append", help="Add a part to OUT.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Of the engine.", show_default="a quarter, at most 2GiB"),
]
Threads = Annotated[
    int | None, typer.Option(help="Of the engine.", show_default="one for each core")
]
Name = Annotated[str | None, typer.Option(help="Name of the corpus.", show_default="that of OUT")]
Prefix = Annotated[str | None, typer.Option(help="Of a dump's files (mediawiki).")]


@app.command()
def prepare(
    sources: Sources,
    out: Out,
    kind: Kind = "table",
    column: Column = None,
    query_features: QueryFeatures = None,
    candidate_features: CandidateFeatures = None,
    shared_ids: SharedIds = False,
    unique: Unique = False,
    k_core: Core = 0,
    minimum_value: MinimumValue = None,
    append: Append = False,
    overwrite: Overwrite = False,
    memory: Memory = None,
    threads: Threads = None,
    name: Name = None,
    prefix: Prefix = None,
    as_json: Json = False,
) -> None:
    """Write interactions of any size to a folder that training reads piece by piece."""
    from evergram.data.prepared.writing.prepare import prepare as prepare_corpus
    from evergram.data.prepared.writing.settings import PrepareSettings

    settings = PrepareSettings(
        columns=_names(column or []),
        query_features=list(query_features) if query_features else None,
        candidate_features=list(candidate_features) if candidate_features else None,
        shared_ids=shared_ids,
        unique=unique,
        k_core=k_core,
        minimum_value=minimum_value,
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


def _names(options: list[str]) -> dict[str, str]:
    """Return the values of `--column ROLE=NAME`. Raises: DataError: one has another form."""
    names: dict[str, str] = {}
    for option in options:
        role, equals, column = option.partition("=")
        if not (equals and role and column):
            raise DataError(f"--column is {option!r}; it is ROLE=NAME, as in query=user_id.")
        if role in names:
            raise DataError(f"--column names {role} twice; name it once.")
        names[role] = column
    return names


TextFile = Annotated[
    Path, typer.Argument(metavar="TEXTS", help="Parquet, Arrow, CSV, TSV or JSON lines.")
]
VectorFile = Annotated[
    Path, typer.Argument(metavar="OUT", help="File of vectors: .parquet, .arrow or .npy.")
]
EncoderAddress = Annotated[
    str, typer.Option("--encoder", metavar="ADDRESS", help="The encoder, see docs/text.md.")
]
TextColumn = Annotated[str | None, typer.Option(help="The column of texts.", show_default="text")]
Matryoshka = Annotated[
    list[int] | None,
    typer.Option(
        min=1,
        metavar="DIMS",
        help="A number of first coordinates that this encoder's vectors may be cut to; may be "
        "repeated.",
    ),
]
RoleOfTexts = Annotated[
    str, typer.Option("--role", help="document or query: which prompt stands before each text.")
]
Prompt = Annotated[
    str | None, typer.Option(show_default="the model's own", help="Words before each of these.")
]


@app.command()
def encode(
    texts: TextFile,
    out: VectorFile,
    encoder: EncoderAddress,
    role: RoleOfTexts = "document",
    query_prompt: Prompt = None,
    document_prompt: Prompt = None,
    id_column: IdColumn = None,
    text_column: TextColumn = None,
    matryoshka: Matryoshka = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Encode a file of texts to a file of vectors that records its encoder.

    A run that was killed goes on with the parts that it wrote.
    """
    from evergram.releasing.files.encode_file import Texts, encode_file
    from evergram.texts.addresses import open_text_encoder
    from evergram.texts.text_encoder import Prompts
    from evergram.texts.text_files import read_texts

    if role not in ("document", "query"):
        raise DataError(f"--role is {role!r}; it is document or query.")
    ids, rows = read_texts(texts, id_column=id_column or "id", text_column=text_column or "text")
    prompts = None
    if query_prompt is not None or document_prompt is not None:
        prompts = Prompts(query_prompt or "", document_prompt or "")
    chosen = Texts(ids, rows, cast(Literal["document", "query"], role))
    opened = open_text_encoder(encoder, prompts)
    record = encode_file(
        *(chosen, opened, out),
        matryoshka=matryoshka or (),
        progress=new_progress(),
        overwrite=force,
    )
    if as_json:
        facts = {"file": str(out), "rows": len(rows), "dim": record.dim, "encoder": record.address}
        cuts = {"matryoshka": record.matryoshka} if record.matryoshka else {}
        dump({**facts, "fingerprint": record.fingerprint, "prompts": record.prompts, **cuts})
        return
    known = "by its weights" if record.fingerprint else "by its canaries alone"
    sys.stdout.write(
        f"{len(rows)} texts, {record.dim} dims, by {record.address} (known again {known}): "
        f"{file_written(out)}\n"
    )
