"""Detect files whose content does not match their name, and unclosed quotation marks in CSVs; and
hash files."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from pathlib import Path
from typing import IO

from evergram.errors import DataError

NPY_SIGN = b"\x93NUMPY"
# First bytes of file formats that are often mistaken for others: the format, and what to do.
_SIGNS: tuple[tuple[bytes, str, str], ...] = (
    (b"PAR1", "a Parquet file", "rename it to end in .parquet"),
    (b"ARROW1", "an Arrow file", "rename it to end in .arrow"),
    (NPY_SIGN, "a NumPy array", "rename it to end in .npy"),
    (b"\x1f\x8b", "a gzip file", "unpack it, or rename it to end in .gz"),
    (b"PK\x03\x04", "a zip file or office document", "give the file inside, or save it as CSV"),
    (b"\x80\x04", "a pickle, which is never opened", "save its rows as CSV or Parquet"),
    (b"\x80\x05", "a pickle, which is never opened", "save its rows as CSV or Parquet"),
    (b"\xff\xfe", "UTF-16 text", "save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "save it as UTF-8"),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"),
    (b"<!doctype", "a web page", "download the file itself"),
    (b"<html", "a web page", "download the file itself"),
)
_HEAD = 4096  # bytes to read
# Arrow's messages start with the whole path.
_ARROW_PREFIX = re.compile(r"^Could not open Parquet input source '.*?': ")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_other_content(path: Path, *expected: bytes) -> None:
    """Refuse a file that has the first bytes of another format, unless it starts with one of
    `expected`. Without `expected`, it must be text without NUL bytes."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if any(head.startswith(sign) for sign in expected):
        return
    start = head.lstrip()[:64].lower()
    for sign, what, remedy in _SIGNS:
        if head.startswith(sign) or (sign.startswith(b"<") and start.startswith(sign)):
            raise DataError(f"{path} is {what}, despite its name; {remedy}.")
    if not expected and b"\0" in head:
        raise DataError(f"{path} has NUL bytes, so it is not UTF-8 text; save it as UTF-8.")


def unreadable(path: Path, error: Exception, *expected: bytes) -> DataError:
    """Return the error for a file that another library could not read; `expected` are the first
    bytes of valid files."""
    if expected and path.is_file():
        try:
            refuse_other_content(path, *expected)
        except DataError as other:
            return other
        except OSError as read_error:
            error = read_error
    if isinstance(error, PermissionError):
        return DataError(f"{path} cannot be read: {error.strerror}; let this user read it.")
    text = getattr(error, "strerror", None) or str(error)
    reason = _ARROW_PREFIX.sub("", " ".join(text.split())).rstrip(".")
    reason = reason or type(error).__name__
    if NPY_SIGN in expected and re.search(r"(?i)pickle|Python objects", reason):
        return DataError(
            f"{path} has Python objects, which are never unpickled; save an array of float32."
        )
    if re.search(r"(?i)utf-?8 data|surrogates", reason):
        return DataError(f"{path} cannot be read: {reason}; save it as UTF-8.")
    return DataError(
        f"{path} cannot be read: {reason}; it may be damaged or incomplete, so get or write it "
        "again."
    )


def refuse_open_quotation(source: Path | str, delimiter: str, content: IO[bytes]) -> None:
    """Refuse a CSV with a quoted cell that is not closed, or closed too early: a parser would read
    all rows up to the next quotation mark as one cell."""
    csv.field_size_limit(2**31 - 1)
    lines = io.TextIOWrapper(content, "utf-8-sig", errors="replace", newline="")
    rows, line = csv.reader(lines, delimiter=delimiter, strict=True), 0
    try:
        for _ in rows:
            line = rows.line_num
    except csv.Error as error:
        raise DataError(
            f"{source} line {line + 1}: a quoted cell is not closed, or closed before its end "
            f"({error}); close it at the cell's end, and double each quotation mark inside it."
        ) from error
    finally:
        lines.detach()
