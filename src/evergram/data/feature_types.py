"""Feature types: decide whether a column holds numbers, times or keys.

Numbers and times are measures: an encoder sorts their values into buckets, so that unseen values
fall into trained buckets. Everything else is a key with its own vector.
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
    parse_dates,
    parse_numbers,
)
from evergram.errors import DataError
from evergram.ids import INTEGER, NOTHING, is_text

NUMBER, TIME = pa.float64(), pa.timestamp("us")
# A measure of n entities gets √n buckets, at most MOST_BUCKETS; or a bucket for each distinct value
# if ENOUGH entities share each value on average.
MOST_BUCKETS, ENOUGH = 64, 4
# Integer columns whose names end like this hold keys, not numbers.
CODE = re.compile(r"(\w{3}ids?|code|((^|[\W_])(ids?|key|no|nr|zip|plz)))$", re.IGNORECASE)
# Times as text, with an optional and with a required time zone.
_DATE = r"^ *\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?"
DATE, _ZONED = rf"{_DATE}(Z|[+-]\d\d:?\d\d)?)? *$", rf"{_DATE}(Z|[+-]\d\d:?\d\d)) *$"


def is_measure(kind: pa.DataType) -> bool:
    return kind in (NUMBER, TIME)


def type_name(kind: pa.DataType) -> str:
    """Return the name of a feature's type: "number", "time" or "category"."""
    return {NUMBER: "number", TIME: "time"}.get(kind, "category")


def typed(column: pa.ChunkedArray, name: str, source: str) -> pa.ChunkedArray:
    """Convert a feature column to its type: numbers (except integers in columns named like brand_id
    or zip) to float64, times to timestamps in UTC, keys to int64, strings, booleans, or lists of
    them. Text becomes numbers or times if every cell is one."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if _is_number(kind) and not (pa.types.is_integer(kind) and CODE.search(name)):
        return to_measures(column, NUMBER, name)
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
            f"{where} holds {kind}; a feature must be numbers, times, text, booleans, or lists of "
            "integers or text. Split lists of decimal numbers into one column per position."
        )
    try:
        column = column.cast(pa.list_(key) if many else key)
    except pa.ArrowException as error:
        raise DataError(f"{where} cannot be read as {key}: {error}.") from error
    if many and any(chunk.flatten().null_count for chunk in column.chunks):
        raise DataError(f"{where} has a null inside a list; remove it.")
    return column


def _typed_texts(texts: pa.Array, name: str, source: str) -> pa.Array:
    """Convert texts to numbers or times if every nonmissing cell is one, else keep them as keys.
    All-integer texts, such as 00017, are keys: readers of text files already convert integers."""
    cells = _without_null_words(texts)
    if cells.null_count == len(cells):
        return texts
    times = parse_times(cells)
    if times.null_count == cells.null_count:
        zoned = pc.match_substring_regex(cells, _ZONED)
        with_zone, row = (pc.index(zoned, has_zone).as_py() for has_zone in (True, False))
        if min(with_zone, row) >= 0:
            raise DataError(
                f"{source} row {row + 1}: {name} is {cells[row].as_py()!r}, without a time zone, "
                "but others have one; write all times with a zone, or none."
            )
        return times
    has_null_words = cells.null_count > texts.null_count
    if all_match(cells, r"^ *\d+ *$") and not (
        has_null_words and all_match(cells, INTEGER) and not CODE.search(name)
    ):
        return texts
    values = _finite(parse_numbers(cells))
    return values if values.null_count == cells.null_count else texts


def to_measures(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Convert values to NUMBER or TIME, null where one is missing."""
    if is_text(values.type):
        texts = _without_null_words(values.cast(pa.string()))
        measures = parse_times(texts) if kind == TIME else _finite(parse_numbers(texts))
        row = pc.index(pc.and_(pc.is_valid(texts), pc.is_null(measures)), True).as_py()
        if row >= 0:
            allowed = "a number such as 1234.5"
            if kind == TIME:
                allowed = "a time such as 2025-01-31 or 2025-01-31T12:00:00+01:00"
            cell = texts[row].as_py()
            raise DataError(f"The feature {name!r} of an object is {cell!r}; it must be {allowed}.")
        return measures
    if pa.types.is_null(values.type):
        return values.cast(kind)
    if kind == NUMBER and _is_number(values.type):
        if pa.types.is_duration(values.type):
            values = values.cast(pa.int64())
        measures = values.cast(NUMBER, safe=False)
        return pc.if_else(pc.is_nan(measures), None, measures)
    if kind == TIME and is_date(values.type):
        return _in_utc(values)
    raise DataError(f"The feature {name!r} has the type {values.type}; give a {type_name(kind)}.")


def positions(measures: pa.Array) -> NDArray[np.float64]:
    if measures.type == TIME:
        measures = measures.cast(pa.int64()).cast(NUMBER, safe=False)
    return np.asarray(pc.fill_null(measures, np.nan).to_numpy(zero_copy_only=False))


def bucket_starts(values: NDArray[np.float64], kind: pa.DataType, *, missing: bool) -> pa.Array:
    """Return the lower bounds of a measure's buckets, ascending. Each bucket has about the same
    number of the values [n]; with `missing`, the last bucket has a null bound for missing values.
    """
    distinct, counts = np.unique(values, return_counts=True)
    count = min(MOST_BUCKETS, round(len(values) ** 0.5))
    # Bounds are half-way between the two values that split the entities most evenly.
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


def parse_times(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parse texts as timestamps in UTC; null where a text is not a time or not a calendar day."""
    plain = pc.if_else(pc.match_substring_regex(texts, DATE), texts, None)
    plain = pc.utf8_trim_whitespace(plain)
    zoned = pc.match_substring_regex(plain, _ZONED)
    with_zone = parse_dates(pc.if_else(zoned, plain, None), "UTC")
    without = parse_dates(pc.if_else(zoned, None, plain), None)
    return pc.coalesce(_in_utc(with_zone), _in_utc(without))


def _finite(measures: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_finite(measures), measures, None)


def _in_utc(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return times.cast(pa.timestamp("us", getattr(times.type, "tz", None)), safe=False).cast(TIME)


def _without_null_words(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace words such as NULL and n/a by null."""
    return pc.if_else(pc.match_substring_regex(texts, NOTHING), None, texts)


def _is_number(kind: pa.DataType) -> bool:
    return is_number(kind) or bool(pa.types.is_duration(kind))
