"""Filters as SQL: values are bound parameters, and names are checked and quoted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

import numpy as np
from psycopg.sql import SQL, Composable

from evergram.errors import DataError
from evergram.stores.filters import (
    Condition,
    Filter,
    check_allowed,
    check_closed,
    of_other_type,
    read_conditions,
    type_of,
)
from evergram.stores.postgres.distances import name_of

WHOLE = ("int2", "int4", "int8")
NUMBERS = (*WHOLE, "numeric", "float4", "float8")
TEXTS = ("text", "varchar", "bpchar", "uuid", "date", "timestamp", "timestamptz", "name")
# Columns that conditions can be on.
COMPARABLE = ("bool", *NUMBERS, *TEXTS)
# Strings and quoted names.
_STRINGS = r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\w*)\$.*?\$\1\$"""
# How texts are written that are compared with such columns.
_EXAMPLES = {
    "date": "2026-01-31",
    "timestamp": "2026-01-31 12:00:00",
    "timestamptz": "2026-01-31 12:00:00+01:00",
    "uuid": "0f8fad5b-d9cb-469f-a165-70867728950e",
}
SIGNS = {"gt": SQL(" > "), "gte": SQL(" >= "), "lt": SQL(" < "), "lte": SQL(" <= ")}


def sql_of(
    asked: Filter, columns: Mapping[str, str], allowed: Sequence[str]
) -> tuple[Composable, list[Any]]:
    """Return a filter as a boolean expression in parentheses, and its parameters.

    Args:
        asked: conditions; or SQL, or SQL and its parameters, which is used as it is.
        columns: of the table, with their types.
        allowed: columns that conditions may name.
    Raises: DataError: the filter is wrong.
    """
    if isinstance(asked, Mapping):
        conditions = read_conditions(asked)
        parts = [_condition(condition, columns, allowed) for condition in conditions]
        together = SQL("({})").format(SQL(" and ").join(parts))
        return together, [_sent(condition, columns[condition.field]) for condition in conditions]
    match asked:
        case str(text):
            bound: Sequence[Any] = ()
        case (str(text), list() | tuple() as bound):
            pass
        case _:
            text = ""
    if not text.strip() or "\0" in text:
        raise DataError(
            "A filter is a dictionary of conditions, or in SQL a boolean expression, such as "
            "\"category = 'news'\", or a pair of one with %s in it and a list of its values."
        )
    check_closed(text, _STRINGS)
    # Without parameters of its own, a % is a %; a comment must not swallow the parenthesis.
    text = text if bound else text.replace("%", "%%")
    return SQL("(\n") + SQL(text) + SQL("\n)"), list(bound)


def _condition(
    condition: Condition, columns: Mapping[str, str], allowed: Sequence[str]
) -> Composable:
    """Return one condition with one placeholder, of a list of its values."""
    check_allowed(condition, allowed)
    field = condition.field
    kind = _sent_as(condition, columns[field])
    column = name_of(field)
    array = SQL("%s::") + SQL(kind) + SQL("[]")
    if condition.operator == "in":
        return column + SQL(" = any(") + array + SQL(")")
    return column + SIGNS[condition.operator] + SQL("(") + array + SQL(")[1]")


def _check_text(field: str, column: str, text: str) -> None:
    """Refuse a text that is no date, time or UUID where the column has these.

    PostgreSQL would take words, such as "yesterday", for some.
    """
    if column not in _EXAMPLES:
        return
    try:
        if column == "uuid":
            UUID(text)
        elif not re.match(r"\d{4}-\d\d-\d\d(?![^T ])", text):
            raise ValueError(text)
        else:
            (date if column == "date" else datetime).fromisoformat(text)
    except ValueError:
        raise DataError(
            f"A filter compares the field {field[:80]!r}, of type {column}, with {text[:80]!r}; "
            f"write it as {_EXAMPLES[column]!r}."
        ) from None


def _sent(condition: Condition, column: str) -> list[Any]:
    """Return a condition's values as they are bound: a `real` column is compared with numbers in
    its own precision, and PostgreSQL refuses those beyond it where here they are infinite, or 0."""
    if column == "float4" and type_of(condition) == "number":
        with np.errstate(over="ignore", under="ignore"):
            return [float(np.float32(float(value))) for value in condition.values]
    return list(condition.values)


def _sent_as(condition: Condition, column: str) -> str:
    """Return the SQL type that values are compared as with a column of a type."""
    values = condition.values
    sort = type_of(condition)
    if column == "bool" and sort == "boolean" and condition.operator == "in":
        return "boolean"
    if column in NUMBERS and sort == "number":
        if column in WHOLE:
            # A fraction must not be rounded to a whole number that rows have.
            whole = all(isinstance(value, int) for value in values)
            return "bigint" if whole else "numeric"
        return {"float4": "real", "float8": "double precision"}.get(column, "numeric")
    if column in TEXTS and sort == "text":
        for value in values:
            _check_text(condition.field, column, str(value))
        return {"varchar": "text", "name": "text", "bpchar": "bpchar"}.get(column, column)
    raise of_other_type(condition, column)
