"""The command that ends a migration: kept vectors as they are, the rest encoded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from evergram.cli.app import vector_commands
from evergram.cli.options import Force, IdColumn, Json, new_progress
from evergram.cli.printing import dump, file_written, paragraph
from evergram.cli.vectors.encoding import (
    EncoderAddress,
    Matryoshka,
    Prompt,
    TextColumn,
    TextFile,
    VectorFile,
)


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
    id_column: IdColumn = None,
    text_column: TextColumn = None,
    matryoshka: Matryoshka = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make the new vectors of all texts: those that were kept as they are, the rest encoded.

    A run that was killed goes on with the parts that it wrote.
    """
    from evergram.migration import finish_migration as migration
    from evergram.releasing.files.encode_file import Texts
    from evergram.texts.addresses import open_with_prompts
    from evergram.texts.text_files import read_texts
    from evergram.vector_files.writers import check_writable

    check_writable(out, overwrite=force or dry_run)
    chosen = Texts(
        *read_texts(texts, id_column=id_column or "id", text_column=text_column or "text")
    )
    opened = open_with_prompts(encoder, query_prompt, document_prompt)
    rest = migration.plan_rest(chosen, opened, kept, check=check, unrecorded=unrecorded)
    facts = rest.report()
    if not as_json:
        _print_rest(facts)
    if dry_run:
        if as_json:
            dump(facts)
        return
    record = migration.finish_migration(
        *(chosen, opened, rest, out),
        matryoshka=matryoshka or (),
        progress=new_progress(),
        overwrite=force,
    )
    if as_json:
        cuts = {"matryoshka": record.matryoshka} if record.matryoshka else {}
        made = {"file": str(out), "dim": record.dim, "encoder": record.address}
        dump(
            {**facts, **made, "fingerprint": record.fingerprint, "prompts": record.prompts, **cuts}
        )
        return
    sys.stdout.write(
        f"{rest.texts:,} texts, {record.dim} dims, by {record.address}: {file_written(out)}\n"
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
