"""The options that name stores, and the progress of what is done with them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from evergram.cli.app import is_quiet
from evergram.cli.options import stores_by_side
from evergram.errors import DataError
from evergram.log_lines import LogFormat, log_format, write_line

WHERE = (
    "a folder, postgresql://…#TABLE, lance:DIR#TABLE, qdrant:URL#COLLECTION or sqlite:FILE#NAME. "
    "A database's password is best in PGPASSWORD or ~/.pgpass, a Qdrant server's key in "
    "QDRANT_API_KEY."
)
Stores = Annotated[
    list[str],
    typer.Option(
        "--store",
        metavar="SIDE=ADDRESS",
        help=f"Store of a side; repeatable, once for each side: {WHERE}",
    ),
]
# A list, though one store is taken: of several, typer would silently take the last.
OneStore = Annotated[
    list[str],
    typer.Option("--store", metavar="SIDE=ADDRESS", help=f"Store of a side: {WHERE}"),
]


def one_store(options: list[str], what: str) -> tuple[str, str]:
    """Return the side and the address of the one `--store`. Raises: DataError: there are more."""
    if len(options) > 1:
        raise DataError(
            f"{what} is of one store; {len(options)} were given by --store: run the command once "
            "for each."
        )
    ((side, address),) = stores_by_side(options).items()
    return side, address


def print_progress(done: int, total: int, what: str) -> None:
    if is_quiet():
        return
    sentence = f"{done} of {total} {what}"
    if sys.stderr.isatty() and log_format() is LogFormat.text:
        sys.stderr.write(f"\r{sentence}" + ("\n" if done >= total else ""))
        return
    write_line("progress", sentence, task=what, done=done, total=total)
