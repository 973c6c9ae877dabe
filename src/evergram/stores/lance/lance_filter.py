"""Filters as LanceDB's SQL: names are checked and quoted, and values written so that they stay
values. LanceDB binds no parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa

from evergram.errors import DataError
from evergram.stores.filters import (
    Condition,
    Filter,
    Value,
    check_allowed,
    check_closed,
    of_other_type,
    read_conditions,
    type_of,
)
from evergram.stores.lance.lance_rows import literal

SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
NOTHING = "false"
# Strings and quoted names.
_STRINGS = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`"""
# What is compared with a column of times, and with one of dates.
_EXAMPLES = {
    False: "a date or a time such as '2026-01-31' or '2026-01-31T12:00:00'",
    True: "a date without a time, such as '2026-01-31'",
}


def quoted(name: str) -> str:
    """Return a column's name as LanceDB's SQL writes it. Raises: DataError: it cannot write it."""
    if "`" in name:
        raise DataError(
            f"The column {name!r} has a ` in its name, which LanceDB's SQL cannot write; name "
            "another column, or rename this one."
        )
    return f"`{name}`"


def sql_of(asked: Filter, columns: Mapping[str, pa.DataType], allowed: Sequence[str]) -> str:
    """Return a filter as a boolean expression in parentheses.

    Args:
        asked: conditions; or LanceDB's SQL, which is used as it is.
        columns: of the table, with their types.
        allowed: columns that conditions may name.
    Raises: DataError: the filter is wrong.
    """
    if isinstance(asked, Mapping):
        parts = [_condition(one, columns, allowed) for one in read_conditions(asked)]
        return f"({' and '.join(parts)})"
    if not isinstance(asked, str) or not asked.strip() or "\0" in asked:
        raise DataError(
            "A filter of a LanceDB table is a dictionary of conditions, or in LanceDB's SQL a "
            "boolean expression, such as \"category = 'news'\"; it takes no list of values."
        )
    check_closed(asked, _STRINGS)
    # A comment must not swallow the parenthesis.
    return f"(\n{asked}\n)"


def is_comparable(column: pa.DataType) -> bool:
    """Return whether conditions can be on a column of a type."""
    if pa.types.is_dictionary(column):
        column = column.value_type
    return any(
        is_kind(column)
        for is_kind in (
            pa.types.is_integer,
            pa.types.is_float32,
            pa.types.is_float64,
            pa.types.is_boolean,
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_date32,
            pa.types.is_timestamp,
        )
    )


def _condition(
    condition: Condition, columns: Mapping[str, pa.DataType], allowed: Sequence[str]
) -> str:
    check_allowed(condition, allowed)
    column = columns[condition.field]
    if pa.types.is_dictionary(column):
        column = column.value_type
    name, sort = quoted(condition.field), type_of(condition)
    if pa.types.is_integer(column) and sort == "number":
        return _of_integers(condition, name, column)
    if sort == "number" and (pa.types.is_float32(column) or pa.types.is_float64(column)):
        values = [_floating(value, column) for value in condition.values]
    elif pa.types.is_boolean(column) and sort == "boolean" and condition.operator == "in":
        values = [str(value).lower() for value in condition.values]
    elif sort == "text" and (pa.types.is_string(column) or pa.types.is_large_string(column)):
        values = [literal(str(value)) for value in condition.values]
    elif sort == "text" and (pa.types.is_date32(column) or pa.types.is_timestamp(column)):
        values = [_time(condition, str(value), column) for value in condition.values]
    else:
        raise of_other_type(condition, str(column))
    if condition.operator == "in":
        return f"{name} in ({', '.join(values)})"
    return f"{name} {SIGNS[condition.operator]} {values[0]}"


def _of_integers(condition: Condition, name: str, column: pa.DataType) -> str:
    """Return a condition on a column of whole numbers. LanceDB refuses a number that the column
    cannot hold, such as 2.5, so the numbers that fulfil the condition are worked out here."""
    lowest, highest = limits(column)
    numbers = [v for v in condition.values if isinstance(v, (int, float))]
    if condition.operator == "in":
        whole = [int(v) for v in numbers if v == math.floor(v) and lowest <= v <= highest]
        return f"{name} in ({', '.join(map(literal, whole))})" if whole else NOTHING
    bound = numbers[0]
    if condition.operator in ("gt", "gte"):
        least = math.floor(bound) + 1 if condition.operator == "gt" else math.ceil(bound)
        if least > highest:
            return NOTHING
        return f"{name} is not null" if least <= lowest else f"{name} >= {literal(least)}"
    most = math.ceil(bound) - 1 if condition.operator == "lt" else math.floor(bound)
    if most < lowest:
        return NOTHING
    return f"{name} is not null" if most >= highest else f"{name} <= {literal(most)}"


def limits(column: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest number of a type of whole numbers."""
    info = np.iinfo(column.to_pandas_dtype())
    return int(info.min), int(info.max)


def _floating(value: Value, column: pa.DataType) -> str:
    number, name = float(value), "double"
    if pa.types.is_float32(column):
        with np.errstate(over="ignore"):
            number, name = float(np.float32(number)), "float"
    return f"cast('{number!r}' as {name})"


def _time(condition: Condition, text: str, column: pa.DataType) -> str:
    """Return a date or a time, which without a zone is of UTC. Raises: DataError: it is none."""
    try:
        if pa.types.is_date32(column):
            return f"date '{date.fromisoformat(text).isoformat()}'"
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise DataError(
            f"A filter compares the field {condition.field[:80]!r}, of type {column}, with "
            f"{text[:40]!r}; give {_EXAMPLES[pa.types.is_date32(column)]}."
        ) from None
    return f"timestamp '{moment.isoformat(sep=' ')}'"
