"""Open text files that may be compressed, and read CSV; a file that expands too far is refused."""

from __future__ import annotations

import gzip
import lzma
import math
import os
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as csv

from evergram.errors import DataError

LIMIT = "EVERGRAM_MAX_EXPANSION"
# Text of interactions, articles and dumps expands 2 to 20 times; gzip can do 1,000 times.
TIMES = 100.0
# An expanded size that is harmless, however well it was compressed.
HARMLESS = 64 << 20
_CHUNK = 1 << 20

# Errors of the standard library's decoders for a file that is cut or damaged; zipfile raises
# RuntimeError for a member that needs a password, or has an unknown compression.
DAMAGED = (OSError, EOFError, zlib.error, zipfile.BadZipFile, lzma.LZMAError, RuntimeError)


class GzipReader(gzip.GzipFile):
    """A reader of a gzip file, as of `gzip.open`, up to the limit of expansion.

    Args:
        path: the file, or its address if it is open already.
        opened: the open file and its bytes, where it is on no disk of this machine.
    Raises: DataError: on reading past the limit.
    """

    def __init__(self, path: Path | str, opened: tuple[IO[bytes], int] | None = None) -> None:
        stream, size = (None, Path(path).stat().st_size) if opened is None else opened
        self._path = path
        self._most = self._left = most_bytes(size)
        super().__init__(path, "rb", fileobj=stream)

    def read(self, size: int | None = -1) -> bytes:
        """Return at most `size` bytes; all that are left if it is negative or None."""
        # One byte beyond the limit shows that it is passed.
        wanted = self._left + 1 if size is None or size < 0 else size
        return self._counted(super().read(wanted))

    def read1(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, all of them from before a damaged place."""
        return self._counted(super().read1(size))

    def _counted(self, content: bytes) -> bytes:
        self._left -= len(content)
        if self._left < 0:
            raise _too_large(self._path, self._most)
        return content


def read_member(archive: zipfile.ZipFile, member: str, path: Path) -> bytes:
    """Return the whole of one file in the zip at `path`.

    Raises: DataError: it is past the limit of expansion.
    """
    # The archive's own sizes may be wrong; the size on the disk is not.
    packed = min(archive.getinfo(member).compress_size, path.stat().st_size)
    most = most_bytes(packed)
    parts, size = [], 0
    with archive.open(member) as file:
        while part := file.read(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > most:
                raise _too_large(path, most)
    return b"".join(parts)


def most_bytes(packed: int) -> int:
    """Return the number of bytes that a compressed file of `packed` bytes may expand to.

    Raises: DataError: the limit in the environment is not a number of at least 1.
    """
    return max(HARMLESS, int(_times() * packed))


def _times() -> float:
    text = os.environ.get(LIMIT)
    if not text:
        return TIMES
    try:
        times = float(text)
    except ValueError:
        times = math.nan
    if not 1 <= times < 1e9:
        raise DataError(
            f"{LIMIT} is {text!r}; it must be a number from 1 on: how many times its size a "
            f"compressed file may expand to ({TIMES:g} by default)."
        )
    return times


def _too_large(path: Path | str, most: int) -> DataError:
    return DataError(
        f"{path} expands to more than {most >> 20} MiB, over {_times():g} times its size, as no "
        "genuine data does; get it from a source that you trust, or if it is right, set "
        f"{LIMIT} to a larger number of times."
    )


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
