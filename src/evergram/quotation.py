"""Check the quotation marks of a CSV, which parsers read as they come."""

from __future__ import annotations

import mmap
import re
import shutil
import tempfile
from io import BufferedIOBase
from pathlib import Path
from typing import IO

from evergram.errors import DataError

# The rest of a cell after the mark that opens it, up to the one that closes it; a doubled one does
# not close it.
_REST = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')


def refuse_open_quotation(
    path: Path | str, delimiter: str, unpacked: IO[bytes] | BufferedIOBase | None = None
) -> None:
    """Refuse a CSV in which a quoted cell has no end, or ends before the cell does.

    A parser takes all rows up to the next mark, or up to the end of the file, for one cell.

    Args:
        path: of the file, or its address.
        delimiter: between cells, of one byte.
        unpacked: its text, where the file is compressed or on no disk of this machine; it is
            copied to a temporary file.
    Raises: DataError: a quotation mark is not closed; the error names the line that opens it.
    """
    sign = delimiter.encode()
    opening = re.compile(rb"(?:\A(?:\xef\xbb\xbf)?|[\r\n" + re.escape(sign) + rb'])"')
    ends = (b"", b"\r", b"\n", sign)
    with Path(path).open("rb") if unpacked is None else tempfile.TemporaryFile() as file:
        if unpacked is not None:
            shutil.copyfileobj(unpacked, file)
            file.flush()
        if not file.seek(0, 2):
            return  # nothing to map
        text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with text:
        place = 0
        while opened := opening.search(text, place):
            rest = _REST.match(text, opened.end())
            place = len(text) if rest is None else rest.end()
            if rest is None or text[place : place + 1] not in ends:
                line = text[: opened.end()].count(b"\n") + 1
                what = "never ends" if rest is None else "ends within its cell"
                raise DataError(
                    f"{path} line {line}: a quotation mark opens a cell there that {what}; close "
                    "it at the cell's end, and double each quotation mark within it."
                )
