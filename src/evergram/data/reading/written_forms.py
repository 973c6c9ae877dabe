"""Numbers and dates that people write in more than one way: 1,234.5 and 1.234,5; 31.12.2025.

Which way a column is written in follows from all of its cells: a point is the decimal sign if each
cell can be read so, else a comma; and the day comes first if each cell can be read so, and one of
them in no other way.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Numbers with a decimal point and with a decimal comma. The sign for thousands cannot follow a
# zero.
_EXPONENT = r"([eE][+-]?\d+)?"
POINT = rf"^ *[+-]?((\d+|[1-9]\d{{0,2}}(,\d{{3}})+)(\.\d*)?|\.\d+){_EXPONENT} *$"
COMMA = rf"^ *[+-]?((\d+|[1-9]\d{{0,2}}(\.\d{{3}})+)(,\d*)?|,\d+){_EXPONENT} *$"
# Dates with the year last, and perhaps a time of day.
_DAY, _MONTH = r"(0?[1-9]|[12]\d|3[01])", r"(0?[1-9]|1[0-2])"
_YEAR = r"[./](\d{4})([T ]\d\d:\d\d(:\d\d)?)? *$"
DAY_FIRST, MONTH_FIRST = rf"^ *{_DAY}[./]{_MONTH}{_YEAR}", rf"^ *{_MONTH}[./]{_DAY}{_YEAR}"


def all_match(texts: pa.Array, pattern: str) -> bool:
    """Return whether all texts that are not null match."""
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is of lists, in any of Arrow's forms."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def numbers(texts: pa.ChunkedArray, *, decimal: str) -> pa.ChunkedArray:
    """Return texts as float64; null where one is not a number with this decimal sign."""
    thousands = "," if decimal == "." else "."
    matches = pc.match_substring_regex(texts, POINT if decimal == "." else COMMA)
    plain = pc.if_else(matches, pc.utf8_trim_whitespace(texts), None)
    plain = pc.replace_substring(pc.utf8_ltrim(plain, "+"), thousands, "")
    return pc.replace_substring(plain, decimal, ".").cast(pa.float64())


def in_iso(texts: pa.ChunkedArray, pattern: str) -> pa.ChunkedArray:
    """Return dates that match DAY_FIRST or MONTH_FIRST in ISO 8601, and texts of another pattern
    as they are."""
    if pattern not in (DAY_FIRST, MONTH_FIRST):
        return texts
    order = r"\3-0\2-0\1\4" if pattern == DAY_FIRST else r"\3-0\1-0\2\4"
    dates = pc.replace_substring_regex(texts, pattern, order)
    return pc.replace_substring_regex(dates, r"-0(\d\d)", r"-\1")


def moments_of(texts: pa.Array, zone: str | None) -> tuple[pa.Array, pa.Array]:
    """Return dates in ISO 8601 as timestamps, and which cells are none, as of a 13th month."""
    for unit in ("us", "ns"):
        try:
            return texts.cast(pa.timestamp(unit, zone)), pa.array(np.zeros(len(texts), bool))
        except pa.ArrowInvalid:
            continue
    kind = pa.timestamp("us", zone)
    moments, wrong = [], []
    for text in texts.to_pylist():
        try:
            # Digits beyond microseconds are dropped.
            moments.append(pa.scalar(text).cast(pa.timestamp("ns", zone)).cast(kind, safe=False))
        except pa.ArrowInvalid:
            try:
                moments.append(pa.scalar(text).cast(kind))
            except pa.ArrowInvalid:
                moments.append(None)
        wrong.append(text is not None and moments[-1] is None)
    values = [None if one is None else one.value for one in moments]
    return pa.array(values, pa.int64()).cast(kind), pa.array(wrong, pa.bool_())
