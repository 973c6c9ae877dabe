"""What may be an id, in every file that a person gives.

An id is an integer or a text, and stays what it is: `00017` in a CSV is text, for as a number it
would be 17. Nothing is not an id: an empty cell, a null, a NaN. In a file of text (CSV, TSV, one id
a line) nobody can tell the word NULL from a null, so those words are refused too; in a column of
texts of Parquet or Arrow they are texts like any other.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

# What programs write in a file of text where there is nothing. NA is left out: it is Namibia.
NOTHING = r"(?i)^( *(nan|null|none|<na>|#?n/a|\\n) *)?$"
# An integer as it is printed: no sign that says nothing, no leading zeros.
INTEGER = r"^(0|-?[1-9]\d*)$"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def first_missing(ids: pa.Array | pa.ChunkedArray, *, text_file: bool = False) -> int:
    """The row of the first cell that is no id; -1 where there is none.

    Args:
        text_file: whether the cells come from a file of text, where words may stand for nothing.
    """
    missing = pc.is_null(ids, nan_is_null=True)
    kind = ids.type.value_type if pa.types.is_dictionary(ids.type) else ids.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = ids.cast(pa.string())
        empty = pc.match_substring_regex(texts, NOTHING) if text_file else pc.equal(texts, "")
        missing = pc.or_(missing, pc.fill_null(empty, True))
    row: int = pc.index(missing, True).as_py()
    return row


def missing_sentence(where: str, name: str, given: object, *, text_file: bool = False) -> str:
    """What to say of a cell that is no id, with its full stop.

    Args:
        where: the file and the row.
        name: of the column, "" where there is one of ids alone.
        given: what the cell holds.
    """
    if given is None or given == "":
        what = f": {name} is empty" if name else " has no id"
        return f"{where}{what}; give it one or leave it out."
    what = f"{where}: {name or 'the id'} is"
    if text_file:
        return (
            f"{what} {given!r}, which in a file of text stands for nothing; give it an id or leave "
            "it out (if it is an id, write the table as Parquet)."
        )
    return f"{what} {given}; give it an id or leave it out."


def ids_of_text(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A column of a text file as ids: int64 where every cell is an integer as it is printed, else
    the texts as they are. float64 where all are numbers and one is no integer: no column of ids."""
    if _all_match(texts, INTEGER):
        try:
            return texts.cast(pa.int64())
        except pa.ArrowInvalid:  # beyond 64 bits
            return texts
    if _all_match(texts, NUMBER) and pc.any(pc.match_substring_regex(texts, r"[.eE]")).as_py():
        return texts.cast(pa.float64())
    return texts


def _all_match(texts: pa.Array | pa.ChunkedArray, pattern: str) -> bool:
    found = pc.all(pc.match_substring_regex(texts, pattern)).as_py()
    return bool(found) and texts.null_count < len(texts)
