"""The rules for ids in files: which values are valid ids, and their types.

An id is an integer or a string, and keeps its form: `00017` in a CSV is a string, because the
integer would be 17. Empty cells, nulls and NaNs are not valid ids. In a text file (CSV, TSV, one id
per line), words such as NULL may mean a missing value, so they are refused too; in string columns
of Parquet or Arrow they are allowed.
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

# Words for a missing value in text files. NA is not included: it is the country code of Namibia.
NOTHING = r"(?i)^ *(nan|null|none|<na>|#?n/a|\\n)? *$"
# Not allowed in ids of a text file: NUL bytes, and line breaks, which come from unclosed quotation
# marks.
BROKEN = r"[\x00\r\n]"
AT_ONCE = 1 << 20  # ids compared at once
INTEGER = r"^(0|-?[1-9]\d*)$"  # an integer as programs print it: no plus sign, no leading zeros
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's string types (not a dictionary)."""
    return any(
        test(kind)
        for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def refuse_missing(
    ids: pa.Array | pa.ChunkedArray, where: str, *, start: int = 0, text_file: bool = False
) -> None:
    """Raise a DataError if a cell is not an id, see `missing_cells`. In the error, `where` comes
    before the row number, such as "x.csv row"; `start` is the number of preceding rows."""
    row = pc.index(missing_cells(ids, text_file=text_file), True).as_py()
    if row >= 0:
        cell = ids[row].as_py()
        has = "no id" if cell is None or cell == "" else f"the id {str(cell)[:40]!r}"
        why = ""
        if text_file and re.search(BROKEN, str(cell)):
            why = " (it has a line break or a NUL byte: close the quotation mark before it)"
        elif text_file and has != "no id":
            why = " (in a text file this means a missing value; to use it as an id, use Parquet)"
        raise DataError(f"{where} {start + row + 1} has {has}{why}; give it one or leave it out.")


def missing_cells(
    ids: pa.Array | pa.ChunkedArray, *, text_file: bool = False
) -> pa.Array | pa.ChunkedArray:
    """Return a mask [n]: True for cells that are not ids, including words such as NULL in a text
    file."""
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
    """Refuse `ids` that equal ids in `others` except for their Unicode normal form: "é" may be one
    character or two. `one` and `other` describe the two sources in the error."""
    if not (is_text(ids.type) and is_text(others.type)):
        return
    ids, others = (x.cast(pa.string()).drop_null() for x in (ids, others))
    ids = ids.filter(pc.invert(pc.string_is_ascii(ids)))
    ids = ids.filter(pc.invert(pc.is_in(ids, value_set=others)))
    if not len(ids):
        return
    others = others.filter(pc.invert(pc.string_is_ascii(others)))
    normalized, normalized_others = (pc.utf8_normalize(x, form="NFC") for x in (ids, others))
    same = ids.filter(pc.is_in(normalized, value_set=normalized_others))
    if len(same):
        raise DataError(
            f"{len(same)} ids of {one}, such as {same[0].as_py()!r}, have another Unicode normal "
            f"form in {other}, so they would be different objects; write both in the same form, "
            "such as NFC."
        )


def refuse_repeats(ids: pa.Array | pa.ChunkedArray, source: str) -> None:
    """Raise a DataError if an id is repeated."""
    if pa.types.is_integer(ids.type) or is_text(ids.type):
        # A hash table would take ten times the memory of a sorted order.
        array = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
        order = pc.sort_indices(array)
        for start in range(0, len(array), AT_ONCE):
            block = array.take(order.slice(start, AT_ONCE + 1))
            if pc.any(pc.equal(block[1:], block[:-1])).as_py():
                break
        else:
            return
    elif len(pc.unique(ids)) == len(ids):
        return
    values, counts = pc.value_counts(ids).flatten()
    repeated = values.filter(pc.greater(counts, 1))
    raise DataError(
        f"{source}: {len(repeated)} ids are repeated, such as {repeated[0].as_py()!r}; keep one "
        "row of each."
    )


def id_hashes(ids: pa.Array, size: int = 1 << 20) -> NDArray[np.int64]:
    """Return a hash in [0, 2³²) for each id [N], the same on every machine. In chunks, because
    Python strings are large."""
    hashes = [np.zeros(0, np.int64)]
    for start in range(0, len(ids), size):
        texts = ids.slice(start, size).cast(pa.string()).to_pylist()
        hashes.append(np.array([zlib.crc32(text.encode()) for text in texts], np.int64))
    return np.concatenate(hashes)


def ids_of_text(texts: pa.Array) -> pa.Array:
    """Convert the lines of a file of ids: to int64 if all match `INTEGER`; to float64, which is not
    a valid type of ids, if all are numbers and some have a decimal point; otherwise no change."""
    with suppress(pa.ArrowInvalid):  # beyond 64 bits
        if pc.all(pc.match_substring_regex(texts, INTEGER)).as_py():
            return texts.cast(pa.int64())
    numbers = pc.all(pc.match_substring_regex(texts, NUMBER)).as_py()
    if numbers and pc.any(pc.match_substring_regex(texts, r"[.eE]")).as_py():
        return texts.cast(pa.float64())
    return texts


# Ids of one query's candidates, or a list of such lists; likewise for weights and values.
Lists: TypeAlias = Sequence[Any]


def as_lists(lists: Lists, what: str) -> list[list[Any]]:
    """Return a list of lists; a flat list becomes its only element."""
    outer = _as_list(lists)
    if not isinstance(outer, list):
        raise DataError(
            f"{what} is of type {type(lists).__name__}; give a list of candidates' ids, or a list "
            "of such lists."
        )
    rows = [_as_list(row) for row in outer]
    if len({isinstance(row, list) for row in rows}) > 1:
        raise DataError(f"{what} has both lists and single ids; give one list per query.")
    rows = rows if rows and isinstance(rows[0], list) else [outer]
    if [] in rows:
        raise DataError(
            f"Query {rows.index([]) + 1} of {len(rows)} has no {what}; it needs at least one "
            "candidate."
        )
    return rows


def _as_list(value: Any) -> Any:
    """Convert a sequence, array or tensor to a list; return a scalar unchanged."""
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.to_pylist()
    if hasattr(value, "tolist") and hasattr(value, "ndim"):  # an array, or a tensor
        return value.tolist() if value.ndim else value
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    return list(value) if is_list else value
