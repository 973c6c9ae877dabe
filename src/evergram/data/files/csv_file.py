"""Read a CSV text as a table; errors name the row, and say what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv

from evergram.data.files.decompression import DAMAGED, GzipReader
from evergram.errors import DataError


def read_csv(
    content: Path | bytes,
    source: str,
    *,
    delimiter: str = ",",
    types: Mapping[str, pa.DataType] | None = None,
    header: bool = True,
) -> pa.Table:
    """Return the table of a CSV text.

    Args:
        content: a file, or its bytes.
        source: name of the text, for errors.
        types: the columns to keep and their types; None keeps all, of types that Arrow infers.
        header: True if the first line names the columns; if False, `types` names them, and a
            quotation mark is a letter like any other.
    Raises: DataError: a column is missing, or a line cannot be read; the error names the row.
    """

    def read(*, use_threads: bool) -> pa.Table:
        names = None if header or types is None else list(types)
        with _opened(content) as file:
            table = csv.read_csv(
                file,
                csv.ReadOptions(use_threads=use_threads, column_names=names),
                csv.ParseOptions(delimiter=delimiter, quote_char='"' if header else False),
                # Only an empty cell is missing; a written NaN stays one, to be refused by its row.
                csv.ConvertOptions(
                    null_values=[""],
                    strings_can_be_null=True,
                    column_types=types,
                    include_columns=list(types) if types else None,
                ),
            )
            # Read here, as the names of columns may be no UTF-8.
            table.column_names  # noqa: B018
            return table

    try:
        try:
            return read(use_threads=True)
        except pa.ArrowInvalid:
            return read(use_threads=False)  # slower, but its error knows the row
    except (*DAMAGED, UnicodeDecodeError, pa.ArrowException) as error:
        raise unreadable_csv(source, error, header=header) from error


def unreadable_csv(source: str, error: Exception, *, header: bool = True) -> DataError:
    """Return the error about a CSV that cannot be read; it names the row if Arrow does."""
    message, where = " ".join(str(error).split()).rstrip("."), ""
    if line := re.search(r"Row #(\d+): ", message):
        where = f" row {int(line[1]) - header}"
        message = message.replace(line[0], "")
    if "UTF8" in message or isinstance(error, UnicodeDecodeError):
        message = "it is not in UTF-8; save the file as UTF-8"
    elif "Empty CSV" in message:
        return DataError(f"{source} is empty; it needs a header and rows.")
    elif counts := re.search(r"Expected (\d+) columns, got (\d+)", message):
        message = (
            f"it has {counts[2]} cells, and the first line has {counts[1]}; give each row as "
            "many, and quote a cell that has the separator in it"
        )
    elif isinstance(error, DAMAGED):
        message += "; if it is damaged or was cut short, get or write it anew"
    todo = "" if ";" in message else "; correct the line"
    return DataError(f"{source}{where} cannot be read: {message}{todo}.")


def _opened(content: Path | bytes) -> Any:
    """Open text for Arrow; Arrow itself would unpack a gzip without a limit."""
    if isinstance(content, bytes):
        return pa.BufferReader(content)
    return GzipReader(content) if content.suffix.lower() == ".gz" else pa.OSFile(str(content))
