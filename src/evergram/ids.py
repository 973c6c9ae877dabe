"""The rules for ids in files: which values are ids, and of which type.

An id is an integer or a text, and keeps its form: `00017` in a CSV is a text, because the number
would be 17. An empty cell, a null and a NaN are no ids. In a text file (CSV, TSV, one id a line)
the word NULL may mean a null, so such words are refused too; in a text column of Parquet or Arrow
they are texts like any other.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evergram.errors import DataError

# Words that programs write to a text file for a missing value. NA is not among them: it is
# Namibia.
NOTHING = r"(?i)^ *(nan|null|none|<na>|#?n/a|\\n)? *$"
# What no id in a text file has: a NUL byte, and a line feed, which comes of a quotation mark that
# does not end.
BROKEN = r"[\x00\r\n]"
# An integer as programs print it: no plus sign, no leading zeros.
INTEGER = r"^(0|-?[1-9]\d*)$"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text, in any of Arrow's forms but a dictionary."""
    return any(
        test(kind)
        for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def refuse_missing(
    ids: pa.Array | pa.ChunkedArray, where: str, *, start: int = 0, text_file: bool = False
) -> None:
    """Raise a DataError if a cell is no id, see `missing_cells`; `where` is the source and what it
    has rows of, such as "x.csv row", and `start` the number of rows before these."""
    row = pc.index(missing_cells(ids, text_file=text_file), True).as_py()
    if row >= 0:
        cell = ids[row].as_py()
        has = "no id" if cell is None or cell == "" else f"the id {str(cell)[:40]!r}"
        why = ""
        if text_file and re.search(BROKEN, str(cell)):
            why = " (it has a line break or a NUL byte: close the quotation mark before it)"
        elif text_file and has != "no id":
            why = " (in a text file it means a missing value; an id is read from Parquet)"
        raise DataError(f"{where} {start + row + 1} has {has}{why}; give it one or leave it out.")


def missing_cells(
    ids: pa.Array | pa.ChunkedArray, *, text_file: bool = False
) -> pa.Array | pa.ChunkedArray:
    """Return which cells are no ids, bool [n]; in a text file words may mean a missing value."""
    missing = pc.is_null(ids, nan_is_null=True)
    kind = ids.type.value_type if pa.types.is_dictionary(ids.type) else ids.type
    if is_text(kind):
        texts = ids.cast(pa.string())
        empty = pc.equal(texts, "")
        if text_file:
            empty = pc.match_substring_regex(texts, f"{NOTHING}|{BROKEN}")
        missing = pc.or_(missing, pc.fill_null(empty, True))
    return missing


def refuse_other_form(ids: pa.Array, others: pa.Array, one: str, other: str) -> None:
    """Refuse `ids` that `others` have in another Unicode normal form only: "é" may be one character
    or two, which look the same. The error calls their holders `one` and `other`."""
    if not (is_text(ids.type) and is_text(others.type)):
        return
    ids, others = (x.cast(pa.string()).drop_null() for x in (ids, others))
    ids = ids.filter(pc.invert(pc.string_is_ascii(ids)))
    ids = ids.filter(pc.invert(pc.is_in(ids, value_set=others)))
    if not len(ids):
        return
    others = others.filter(pc.invert(pc.string_is_ascii(others)))
    normal, theirs = (pc.utf8_normalize(x, form="NFC") for x in (ids, others))
    same = ids.filter(pc.is_in(normal, value_set=theirs))
    if len(same):
        raise in_other_form(len(same), same[0].as_py(), one, other)


def in_other_form(count: int, example: str, one: str, other: str) -> DataError:
    return DataError(
        f"{count} ids of {one}, such as {example!r}, are in {other} in another Unicode normal form "
        "and would be other objects; write both in one form, such as NFC."
    )


def refuse_repeats(ids: pa.Array | pa.ChunkedArray, source: str) -> None:
    """Raise a DataError if an id comes more than once."""
    if len(pc.unique(ids)) == len(ids):
        return
    values, counts = pc.value_counts(ids).flatten()
    repeated = values.filter(pc.greater(counts, 1))
    raise DataError(
        f"{source}: {len(repeated)} ids come more than once, such as {repeated[0].as_py()!r}; "
        "leave one row of each."
    )


def id_hashes(ids: pa.Array, size: int = 1 << 20) -> NDArray[np.int64]:
    """Return a number in [0, 2³²) for each id, the same on every machine, [N]. They are made a part
    at a time: Python's strings are large."""
    hashes = [np.zeros(0, np.int64)]
    for start in range(0, len(ids), size):
        texts = ids.slice(start, size).cast(pa.string()).to_pylist()
        hashes.append(np.array([zlib.crc32(text.encode()) for text in texts], np.int64))
    return np.concatenate(hashes)


def ids_of_text(texts: pa.Array) -> pa.Array:
    """Return the lines of a file of ids: int64 if every one is an integer as programs print it,
    float64, which is no type of ids, if all are numbers with a decimal point, else the texts."""
    with suppress(pa.ArrowInvalid):  # beyond 64 bits
        if pc.all(pc.match_substring_regex(texts, INTEGER)).as_py():
            return texts.cast(pa.int64())
    numbers = pc.all(pc.match_substring_regex(texts, NUMBER)).as_py()
    if numbers and pc.any(pc.match_substring_regex(texts, r"[.eE]")).as_py():
        return texts.cast(pa.float64())
    return texts


# Ids of one query's candidates, or a list of such lists; weights and values have the same form.
Lists: TypeAlias = Sequence[Any]


def as_lists(lists: Lists, what: str) -> list[list[Any]]:
    """Return lists of lists: one, if it is a flat list."""
    outer = _as_list(lists)
    if not isinstance(outer, list):
        raise DataError(
            f"{what} is of type {type(lists).__name__}; give a list of candidates' ids, or a list "
            "of such lists."
        )
    rows = [_as_list(row) for row in outer]
    if len({isinstance(row, list) for row in rows}) > 1:
        raise DataError(f"{what} has lists beside single ids; give one list for each query.")
    rows = rows if rows and isinstance(rows[0], list) else [outer]
    if [] in rows:
        raise DataError(
            f"Query {rows.index([]) + 1} of {len(rows)} has no {what}; its vector is made of at "
            "least one candidate."
        )
    return rows


def _as_list(value: Any) -> Any:
    """Return a sequence, an array or a tensor as a list, and one thing by itself as it is."""
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.to_pylist()
    if hasattr(value, "tolist") and hasattr(value, "ndim"):  # an array, or a tensor
        return value.tolist() if value.ndim else value
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    return list(value) if is_list else value
