"""Read texts, queries and judgements in BEIR's layout.

A folder has `corpus.jsonl` and `queries.jsonl` (one object a line: `_id`, `text`, perhaps `title`)
and `qrels/SPLIT.tsv` (query, text, grade; the first line is a header). Each may be compressed
(`.gz`).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from evergram.errors import DataError

# Of a grade.
MOST_DIGITS = 9

# By query, then by text: the grade, an integer; one that is above 0 is relevant.
Judgements = dict[str, dict[str, int]]


def read_texts(path: Path) -> dict[str, str]:
    """Return the texts of `corpus.jsonl` or `queries.jsonl` by id, in the file's order.

    A title stands before the text, with a space between them.
    Raises: DataError: the file is missing, or a line is no such object, or an id occurs twice.
    """
    texts: dict[str, str] = {}
    for number, line in _lines(path):
        try:
            record = json.loads(line)
            id_, text, title = record["_id"], record["text"], record.get("title") or ""
            if not all(isinstance(value, str) for value in (id_, text, title)):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DataError(
                f"{path} line {number} is not a JSON object with the texts _id and text; correct "
                "the line or leave it out."
            ) from None
        if id_ in texts:
            raise DataError(f"{path} line {number} has the id {id_!r} again; leave one of them.")
        texts[id_] = f"{title} {text}".strip()
    if not texts:
        raise DataError(f"{path} has no texts; it needs one a line.")
    return texts


def read_judgements(path: Path) -> Judgements:
    """Return the grades of a file of judgements.

    Args:
        path: a file of three columns, with tabs between them (query, text, grade) and a header, as
            BEIR has it; or of four columns without a header (query, 0, text, grade), as TREC has
            it. A folder stands for its `qrels/test.tsv`, or its `test.tsv`.
    Raises: DataError: the file is missing, or a line is of neither form, or a pair has two grades.
    """
    if path.is_dir():
        inner = _plain_or_compressed(path / "test.tsv")
        path = inner if inner.is_file() else _plain_or_compressed(path / "qrels" / "test.tsv")
    grades: Judgements = {}
    for place, (number, line) in enumerate(_lines(path)):
        columns = line.split("\t") if "\t" in line else line.split()
        if place == 0 and len(columns) == 3 and _is_word(columns[2]):
            continue  # the header
        if len(columns) == 4:
            columns = [columns[0], columns[2], columns[3]]
        if len(columns) != 3 or not _is_integer(columns[2]):
            raise DataError(
                f"{path} line {number} is {line[:80]!r}; query, text and an integer grade (of at "
                f"most {MOST_DIGITS} digits) are needed, with tabs between them."
            )
        query, text, grade = columns[0].strip(), columns[1].strip(), int(columns[2])
        if grades.setdefault(query, {}).setdefault(text, grade) != grade:
            raise DataError(
                f"{path} line {number} grades query {query!r} and text {text!r} again, and "
                "otherwise; leave one of them."
            )
    if not grades:
        raise DataError(f"{path} has no judgements; it needs one a line.")
    return grades


def _is_integer(text: str) -> bool:
    digits = text.strip().removeprefix("-")
    return digits.isdecimal() and len(digits) <= MOST_DIGITS


def _is_word(text: str) -> bool:
    """Return whether it names a column: it is neither empty nor a number of any form."""
    try:
        float(text)
    except ValueError:
        return bool(text.strip())
    return False


def _plain_or_compressed(path: Path) -> Path:
    compressed = path.with_name(path.name + ".gz")
    return compressed if compressed.is_file() and not path.is_file() else path


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbers and the content of lines that are not empty."""
    path = _plain_or_compressed(path)
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"{path} cannot be read: {reason.rstrip('.')}; correct the path or the file."
        ) from error


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")
