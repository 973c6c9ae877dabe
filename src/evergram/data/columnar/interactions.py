"""Check a table of interactions column by column; errors name the row."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError
from evergram.ids import first_missing, is_text, missing_sentence

# In a unit of times; a nanosecond is less than one.
_MICROSECONDS = {"D": 86_400_000_000, "s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


def checked_interactions(table: pa.Table, source: str, *, first_row: int = 0) -> pa.Table:
    """Return the table with `value` and `weight` as float32 and `time` as int64 or float64.

    Args:
        table: columns `query`, `candidate`, optionally `value`, `time` (a number, a date or a
            timestamp) and `weight`.
        source: name of the table, for errors.
        first_row: rows of the source before this table, if it is read in pieces.
    Raises: DataError: a column is missing or of a wrong type, there is no row, an id is missing, or
        a number is null, not finite, or a negative weight; the error names the row.
    """
    for name in ("query", "candidate"):
        if name not in table.column_names:
            has = ", ".join(table.column_names) or "none"
            raise DataError(f"{source} has no column {name!r}; its columns are: {has}.")
    if table.num_rows == 0:
        raise DataError(f"{source} has no rows; at least one interaction is needed.")
    for name in ("query", "candidate"):
        check_ids(table[name], name, source, first_row=first_row)
    for name in ("value", "time", "weight"):
        if name not in table.column_names:
            continue
        column = written = table[name]
        kind = column.type
        if name == "time" and pa.types.is_uint64(kind):
            _refuse_large(column, (name, source, first_row), "a time below 2⁶³")
        if name == "time":
            _refuse_beyond(column, (name, source, first_row))
        if name == "time" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            # One integer unit for every clock, as only order and differences are used.
            column = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            wanted = "a number, a date or a timestamp" if name == "time" else "a number"
            what = f"{source} column {name!r} is {'text' if is_text(kind) else kind}"
            remedy = ""
            if name == "time" and is_text(kind):
                remedy = " (pandas.to_datetime makes one; in a CSV, dates as text are read)"
            raise DataError(f"{what}; it must be {wanted}{remedy}.")
        elif name != "time":  # unsafe, as float32 may round a large count
            column = column.cast(pa.float32(), safe=False)
        else:
            column = column.cast(pa.int64() if pa.types.is_integer(kind) else pa.float64())
        table = table.set_column(table.column_names.index(name), name, column)
        bad = pc.is_null(column, nan_is_null=True)
        if pa.types.is_floating(column.type):
            bad = pc.or_kleene(bad, pc.invert(pc.fill_null(pc.is_finite(column), False)))
        where = (name, source, first_row)
        wanted = "a finite number" if name == "time" else "a finite number of 32 bits"
        _refuse_first_bad(bad, written, where, wanted)
        if name == "weight":
            negative = pc.less(column, 0)
            _refuse_first_bad(negative, column, where, "a finite number of at least 0")
    return table


def check_ids(column: pa.ChunkedArray, name: str, source: str, *, first_row: int = 0) -> None:
    """Refuse a column that cannot be ids.

    Args:
        first_row: rows of the source before this column, if it is read in pieces.
    Raises: DataError: it holds neither integers nor strings, a cell is empty, or an integer is 2⁶³
        or more.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or is_text(kind)):
        example = f" (the first is {column[0].as_py()})" if len(column) else ""
        raise DataError(
            f"{source} column {name!r} is {kind}{example}; ids must be integers or strings."
        )
    refuse_missing(column, name, source, first_row=first_row)
    if pa.types.is_uint64(kind):
        wanted = "below 2⁶³ to be an integer id, or be given as text"
        _refuse_large(column, (name, source, first_row), wanted)


def refuse_missing(
    column: pa.ChunkedArray,
    name: str,
    source: str,
    *,
    text_file: bool = False,
    first_row: int = 0,
) -> None:
    """Refuse a column of ids in which one is missing, see `evergram.ids`.

    Args:
        text_file: True if the cells come from a file of text, in which a word such as NULL may
            stand for a missing id.
        first_row: rows of the source before this column, if it is read in pieces.
    Raises: DataError: an id is missing; the error names its row.
    """
    row = first_missing(column, text_file=text_file)
    if row >= 0:
        where, cell = f"{source} row {first_row + row + 1}", column[row].as_py()
        raise DataError(missing_sentence(where, name, cell, text_file=text_file))


def _refuse_beyond(column: pa.ChunkedArray, where: tuple[str, str, int]) -> None:
    """Refuse a time that 64 bits do not hold, in microseconds where it is a date; the largest
    integers stand for no time."""
    kind = column.type
    if pa.types.is_float16(kind):
        column, kind = column.cast(pa.float32()), pa.float32()  # float16 is not compared
    if pa.types.is_floating(kind):
        numbers, limit = column, 2.0**63
    elif pa.types.is_signed_integer(kind):
        numbers, limit = column.cast(pa.int64()), 2**63 - 1
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        unit = "D" if pa.types.is_date32(kind) else getattr(kind, "unit", "ms")
        days = column.cast(pa.int32()) if unit == "D" else column
        numbers, limit = days.cast(pa.int64()), (2**63 - 1) // _MICROSECONDS[unit]
    else:
        return
    beyond = pc.or_kleene(pc.greater_equal(numbers, limit), pc.less_equal(numbers, -limit))
    if pa.types.is_floating(kind):
        beyond = pc.and_kleene(beyond, pc.is_finite(numbers))
    row = pc.index(beyond, True).as_py()
    if row >= 0:
        name, source, first_row = where
        raise DataError(
            f"{source} row {first_row + row + 1}: {name} is {numbers[row].as_py()}, which is no "
            "time: it does not fit into 64 bits, or stands for a missing one; correct the row, or "
            "leave it out."
        )


def _refuse_large(column: pa.ChunkedArray, where: tuple[str, str, int], wanted: str) -> None:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    large = pc.greater_equal(column, pa.scalar(2**63, pa.uint64()))
    _refuse_first_bad(large, column, where, wanted)


def _refuse_first_bad(
    bad: pa.Array, column: pa.Array, where: tuple[str, str, int], wanted: str
) -> None:
    """Refuse the first bad cell; `where` is the column, the source, and its rows before."""
    row = pc.index(bad, True).as_py()
    if row >= 0:
        name, source, first_row = where
        cell = column[row].as_py()
        cell = "empty" if cell is None else cell
        raise DataError(
            f"{source} row {first_row + row + 1}: {name} is {cell}; it must be {wanted}."
        )
