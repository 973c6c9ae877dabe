"""The command that encodes texts as vectors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from evergram.cli.app import vector_commands
from evergram.cli.command_line.completion import choices
from evergram.cli.options import Force, IdColumn, Json, new_progress
from evergram.cli.printing import dump, file_written
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError

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
        "--encoder",
        metavar="ADDRESS",
        help="The encoder, such as sentence-transformers:NAME; docs/text.md has all.",
    ),
]
TextColumn = Annotated[str | None, typer.Option(help="The column of texts.", show_default="text")]
RoleOfTexts = Annotated[
    str,
    typer.Option(
        "--role",
        help="What the texts are, document or query: it chooses the prompt before them.",
        autocompletion=choices("document", "query"),
    ),
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
    from evergram.texts.addresses import open_with_prompts
    from evergram.texts.text_files import read_texts

    if role not in ("document", "query"):
        raise DataError(
            f"--role is {role!r}; it is document or query"
            f"{did_you_mean(role, ('document', 'query'))}."
        )
    ids, rows = read_texts(texts, id_column=id_column or "id", text_column=text_column or "text")
    chosen = Texts(ids, rows, cast(Literal["document", "query"], role))
    opened = open_with_prompts(encoder, query_prompt, document_prompt)
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
