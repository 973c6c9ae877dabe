"""What a file holds in spite of its name, and whether a CSV's quotation marks are closed."""

from __future__ import annotations

import mmap
import re
import shutil
import tempfile
from io import BufferedIOBase
from pathlib import Path
from typing import IO

from evergram.errors import DataError

NPY_SIGN = b"\x93NUMPY"
# The first bytes of files that are taken for others: what they are, and what to do.
_SIGNS: tuple[tuple[bytes, str, str], ...] = (
    (b"PAR1", "a Parquet file", "let its name end in .parquet"),
    (b"ARROW1", "an Arrow file", "let its name end in .arrow"),
    (NPY_SIGN, "an array of NumPy", "let its name end in .npy"),
    (b"\x1f\x8b", "a gzip", "unpack it, or let its name end in .gz"),
    (b"PK\x03\x04", "a zip, or an office document", "give the file inside, or save it as CSV"),
    (b"%PDF", "a PDF", "save its rows as CSV or Parquet"),
    (b"SQLite format 3", "a database of SQLite", "save its rows as CSV or Parquet"),
    (b"\x80\x04", "a pickle, which is never opened", "save its rows as CSV or Parquet"),
    (b"\x80\x05", "a pickle, which is never opened", "save its rows as CSV or Parquet"),
    (b"\xff\xfe", "text in UTF-16", "save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "save it as UTF-8"),
    (b"version https://git-lfs", "a pointer of Git LFS", "fetch the file itself: git lfs pull"),
    (b"<!doctype", "a web page", "download the file itself"),
    (b"<html", "a web page", "download the file itself"),
    (b"<?xml", "a page of XML", "download the file itself, or save its rows as CSV"),
)
# Bytes that are looked at.
_HEAD = 4096
# In front of the reason, Arrow repeats the whole path.
_ARROW_PREFIX = re.compile(r"^Could not open Parquet input source '.*?': ")


def refuse_other_content(path: Path, *own: bytes) -> None:
    """Refuse a file that is of a known kind in spite of its name, by its first bytes, which may be
    its `own`; a file of text, without any, has no NUL bytes."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if any(head.startswith(sign) for sign in own):
        return
    start = head.lstrip()[:64].lower()
    for sign, what, remedy in _SIGNS:
        if head.startswith(sign) or (sign.startswith(b"<") and start.startswith(sign)):
            raise DataError(f"{path} is {what}, in spite of its name; {remedy}.")
    if not own and b"\0" in head:
        raise DataError(f"{path} has NUL bytes, so it is no text in UTF-8; save it as UTF-8.")


def unreadable(path: Path, error: Exception, *own: bytes) -> DataError:
    """Return the error about a file that another library could not read; `own` are the first bytes
    that such a file has."""
    if own and path.is_file():
        try:
            refuse_other_content(path, *own)
        except DataError as other:
            return other
        except OSError as failed:
            error = failed
    if isinstance(error, PermissionError):
        return DataError(f"{path} cannot be read: {error.strerror}; let this user read it.")
    text = getattr(error, "strerror", None) or str(error)
    reason = _ARROW_PREFIX.sub("", " ".join(text.split())).rstrip(".")
    reason = reason or type(error).__name__
    if NPY_SIGN in own and re.search(r"(?i)pickle|Python objects", reason):
        return DataError(
            f"{path} holds Python objects, which are never unpickled; save an array of float32."
        )
    if re.search(r"(?i)utf-?8 data|surrogates", reason):
        return DataError(f"{path} cannot be read: {reason}; save its texts as UTF-8.")
    return DataError(
        f"{path} cannot be read: {reason}; if it is damaged or was cut short, get or write it anew."
    )


# The rest of a cell after the mark that opens it, up to the one that closes it; a doubled one does
# not close it.
_REST = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')


def refuse_open_quotation(
    path: Path | str, delimiter: str, unpacked: IO[bytes] | BufferedIOBase | None = None
) -> None:
    """Refuse a CSV in which a quoted cell has no end, or ends before the cell does: a parser takes
    all rows up to the next mark for one cell. What is compressed or on no disk of this machine is
    copied from `unpacked` to a temporary file."""
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
