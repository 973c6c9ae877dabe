"""The types of features: a column is numbers, times or keys, however its file writes it.

A number and a time are measures: an encoder puts their values into buckets, so that a value that
training never had is in a bucket that it had. All else are keys, each with a vector of its own.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evergram.data.reading.interactions import (
    all_match,
    is_date,
    is_list,
    is_number,
    moments_of,
    numbers,
)
from evergram.errors import DataError
from evergram.ids import INTEGER, NOTHING, is_text

NUMBER, TIME = pa.float64(), pa.timestamp("us")
# Buckets of a measure at most; √n of n objects, but one for each value that enough of them have.
MOST_BUCKETS, ENOUGH = 64, 4
# The end of a name of integers that are keys, not numbers.
CODE = re.compile(r"(\w{3}ids?|code|((^|[\W_])(ids?|key|no|nr|zip|plz)))$", re.IGNORECASE)
# Times as text. The second pattern is of one with a zone.
_DATE = r"^ *\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?"
DATE, _ZONED = rf"{_DATE}(Z|[+-]\d\d:?\d\d)?)? *$", rf"{_DATE}(Z|[+-]\d\d:?\d\d)) *$"


def is_measure(kind: pa.DataType) -> bool:
    return kind in (NUMBER, TIME)


def type_name(kind: pa.DataType) -> str:
    """Return the name of a feature's type: "number", "time" or "category"."""
    return {NUMBER: "number", TIME: "time"}.get(kind, "category")


def typed(column: pa.ChunkedArray, name: str, source: str) -> pa.ChunkedArray:
    """Return a column of features as what it means: numbers (any numeric type, but integers under a
    name such as brand_id or zip) as float64, times as timestamps in UTC, and keys as int64, strings
    or booleans, or lists of them; a text is a number or a time if all of the column are."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if _is_number(kind) and not (pa.types.is_integer(kind) and CODE.search(name)):
        return measures_of(column, NUMBER, name)
    if is_date(kind):
        return _in_utc(column)
    if is_text(kind):
        texts = column.cast(pa.string()).combine_chunks()
        return pa.chunked_array([_typed_texts(texts, name, source)])
    where, many = f"{source} column {name!r}", is_list(kind)
    flat = kind.value_type if many else kind
    key = pa.int64() if pa.types.is_integer(flat) else pa.string()
    key = pa.bool_() if pa.types.is_boolean(flat) else key
    if pa.types.is_floating(flat) or pa.types.is_binary(flat) or pa.types.is_nested(flat):
        raise DataError(
            f"{where} holds {kind}; a feature is of numbers, times, text or booleans, or of lists "
            "of integers or text. Give each number of a list a column of its own."
        )
    try:
        column = column.cast(pa.list_(key) if many else key)
    except pa.ArrowException as error:
        raise DataError(f"{where} cannot be read as {key}: {error}.") from error
    if many and any(chunk.flatten().null_count for chunk in column.chunks):
        raise DataError(f"{where} has a null inside a list; remove it.")
    return column


def _typed_texts(texts: pa.Array, name: str, source: str) -> pa.Array:
    """Return texts as numbers or times if each cell that is not missing is one, else as keys. Texts
    that are all integers are keys, such as 00017: integers in a text file are no texts."""
    given = _given(texts)
    if given.null_count == len(given):
        return texts
    times = times_of(given)
    if times.null_count == given.null_count:
        zoned = pc.match_substring_regex(given, _ZONED)
        with_zone, row = (pc.index(zoned, has_one).as_py() for has_one in (True, False))
        if min(with_zone, row) >= 0:
            raise DataError(
                f"{source} row {row + 1}: {name} is {given[row].as_py()!r}, without a zone, and "
                "others have one; write all of them in one way."
            )
        return times
    words = given.null_count > texts.null_count
    if all_match(given, r"^ *\d+ *$") and not (
        words and all_match(given, INTEGER) and not CODE.search(name)
    ):
        return texts
    read = _finite(numbers(given))
    return read if read.null_count == given.null_count else texts


def measures_of(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return each value as a NUMBER or a TIME, null where it is missing."""
    if is_text(values.type):
        texts = _given(values.cast(pa.string()))
        read = times_of(texts) if kind == TIME else _finite(numbers(texts))
        row = pc.index(pc.and_(pc.is_valid(texts), pc.is_null(read)), True).as_py()
        if row >= 0:
            wanted = "a number such as 1234.5"
            if kind == TIME:
                wanted = "a time such as 2025-01-31 or 2025-01-31T12:00:00+01:00"
            cell = texts[row].as_py()
            raise DataError(f"The feature {name!r} of an object is {cell!r}; it must be {wanted}.")
        return read
    if pa.types.is_null(values.type):
        return values.cast(kind)
    if kind == NUMBER and _is_number(values.type):
        if pa.types.is_duration(values.type):
            values = values.cast(pa.int64())
        measures = values.cast(NUMBER, safe=False)
        return pc.if_else(pc.is_nan(measures), None, measures)
    if kind == TIME and is_date(values.type):
        return _in_utc(values)
    raise DataError(f"The feature {name!r} is given as {values.type}; give a {type_name(kind)}.")


def positions(measures: pa.Array) -> NDArray[np.float64]:
    if measures.type == TIME:
        measures = measures.cast(pa.int64()).cast(NUMBER, safe=False)
    return np.asarray(pc.fill_null(measures, np.nan).to_numpy(zero_copy_only=False))


def bucket_starts(values: NDArray[np.float64], kind: pa.DataType, *, missing: bool) -> pa.Array:
    """Return the smallest values of the buckets of a measure, ascending; the buckets have about as
    many of the values [n] each, and one of `missing` values is the last, with a null key."""
    distinct, counts = np.unique(values, return_counts=True)
    count = min(MOST_BUCKETS, round(len(values) ** 0.5))
    # Bounds are half-way between two values, those that divide the objects most evenly.
    shares = np.arange(1, count) * len(values) / max(count, 1)
    ends = np.unique(np.searchsorted(np.cumsum(counts), shares))
    if len(distinct) <= max(count, min(MOST_BUCKETS, len(values) // ENOUGH)):
        ends = np.arange(len(distinct))
    ends = ends[ends < len(distinct) - 1]
    starts = np.append(distinct[:1], (distinct[ends] + distinct[ends + 1]) / 2)
    keys = pa.array(starts)
    if kind == TIME:
        keys = pa.array(starts.astype(np.int64)).cast(TIME)
    return pa.concat_arrays([keys, pa.nulls(int(missing), kind)])


def times_of(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts as timestamps in UTC; null where one is no time, or no day of the calendar."""
    plain = pc.if_else(pc.match_substring_regex(texts, DATE), texts, None)
    plain = pc.utf8_trim_whitespace(plain)
    zoned = pc.match_substring_regex(plain, _ZONED)
    with_zone = moments_of(pc.if_else(zoned, plain, None), "UTC")
    without = moments_of(pc.if_else(zoned, None, plain), None)
    return pc.coalesce(_in_utc(with_zone), _in_utc(without))


def _finite(measures: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_finite(measures), measures, None)


def _in_utc(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return times.cast(pa.timestamp("us", getattr(times.type, "tz", None)), safe=False).cast(TIME)


def _given(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts with null for words such as NULL and n/a."""
    return pc.if_else(pc.match_substring_regex(texts, NOTHING), None, texts)


def _is_number(kind: pa.DataType) -> bool:
    return is_number(kind) or bool(pa.types.is_duration(kind))
