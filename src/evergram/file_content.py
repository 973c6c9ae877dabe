"""What a file holds in spite of its name, and whether a CSV's quotation marks are closed."""

from __future__ import annotations

import csv
import io
import re
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
    (b"\x80\x04", "a pickle, which is never opened", "save its rows as CSV or Parquet"),
    (b"\x80\x05", "a pickle, which is never opened", "save its rows as CSV or Parquet"),
    (b"\xff\xfe", "text in UTF-16", "save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "save it as UTF-8"),
    (b"version https://git-lfs", "a pointer of Git LFS", "fetch the file itself: git lfs pull"),
    (b"<!doctype", "a web page", "download the file itself"),
    (b"<html", "a web page", "download the file itself"),
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


def refuse_open_quotation(source: Path | str, delimiter: str, content: IO[bytes]) -> None:
    """Refuse a CSV in which a quoted cell has no end, or ends before the cell does: a parser takes
    all rows up to the next mark for one cell."""
    csv.field_size_limit(2**31 - 1)
    lines = io.TextIOWrapper(content, "utf-8-sig", errors="replace", newline="")
    rows, line = csv.reader(lines, delimiter=delimiter, strict=True), 0
    try:
        for _ in rows:
            line = rows.line_num
    except csv.Error as error:
        raise DataError(
            f"{source} line {line + 1}: a quotation mark opens a cell there that does not end, or "
            f"ends within its cell ({error}); close it at the cell's end, and double each "
            "quotation mark within it."
        ) from error
    finally:
        lines.detach()
