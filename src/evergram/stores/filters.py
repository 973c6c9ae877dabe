"""Filters by metadata, in the small form that a client of the service may send."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from evergram.errors import DataError

Filter: TypeAlias = Mapping[str, Any]
Value: TypeAlias = bool | int | float | str

SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
MOST_FIELDS, MOST_VALUES = 32, 1_000
FORM = (
    'a filter is {"field": value}, {"field": [value, value]} or {"field": {"gte": value, '
    '"lt": value}} with gt, gte, lt and lte; all its fields must hold'
)


@dataclass(frozen=True)
class Condition:
    """One condition on one field: "in" one of the values, or "gt", "gte", "lt", "lte" than the one;
    all values are of one type, and ints and floats are one."""

    field: str
    operator: str
    values: tuple[Value, ...]


def read_conditions(conditions: Filter) -> list[Condition]:
    """Return the conditions of a filter, all of which must hold. Raises: DataError: it has another
    form."""
    if not isinstance(conditions, Mapping):
        raise DataError(f"A filter is {str(conditions)[:40]!r}; {FORM}.")
    if not conditions or len(conditions) > MOST_FIELDS:
        raise DataError(
            f"A filter has {len(conditions)} fields; it needs 1 to {MOST_FIELDS}: {FORM}."
        )
    return [one for field, asked in conditions.items() for one in _of_field(field, asked)]


def _of_field(field: object, asked: object) -> list[Condition]:
    if not isinstance(field, str) or not _is_text(field):
        raise DataError(f"A field of a filter is {str(field)[:40]!r}, which is not a name; {FORM}.")
    if isinstance(asked, Mapping):
        if not asked or not asked.keys() <= SIGNS.keys():
            raise DataError(f"The bounds of field {field[:80]!r} are wrong; {FORM}.")
        return [Condition(field, name, (_value(field, bound),)) for name, bound in asked.items()]
    values = list(asked) if isinstance(asked, (list, tuple)) else [asked]
    if not 1 <= len(values) <= MOST_VALUES:
        raise DataError(
            f"Field {field[:80]!r} of a filter has {len(values)} values; it needs 1 to "
            f"{MOST_VALUES:,}."
        )
    checked = tuple(_value(field, value) for value in values)
    if len({_type(value) for value in checked}) > 1:
        raise DataError(f"The values of field {field[:80]!r} are of several types; give one.")
    return [Condition(field, "in", checked)]


def _value(field: str, value: object) -> Value:
    """Return a value that a filter may have. Raises: DataError."""
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"A value of field {field[:80]!r} is not finite.")
    if isinstance(value, str) and not _is_text(value):
        raise DataError(f"A value of field {field[:80]!r} has a character that no text has.")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise DataError(f"A value of field {field[:80]!r} has more than 64 bits.")
    if not isinstance(value, (bool, int, float, str)):
        raise DataError(
            f"A value of field {field[:80]!r} is not a text, a number or a boolean; {FORM}."
        )
    return value


def _is_text(text: str) -> bool:
    """Return whether a text has neither a NUL nor half of a pair of surrogates."""
    return re.search("[\0\ud800-\udfff]", text) is None


def _type(value: Value) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


def type_of(condition: Condition) -> str:
    """Return "boolean", "number" or "text", the type of a condition's values."""
    return _type(condition.values[0])


def allowed_conditions(conditions: Filter, allowed: Sequence[str]) -> list[Condition]:
    """Return the conditions of a filter. Raises: DataError: it has another form, or the operator
    did not allow filters to name one of its fields."""
    read = read_conditions(conditions)
    for field in [one.field for one in read if one.field not in allowed]:
        names = ", ".join(sorted(allowed))
        can = f"it may name {names}" if names else "no field may be named"
        raise DataError(
            f"A filter names the field {field[:80]!r}; {can}, which the operator sets in the "
            "store's address by filter=COLUMN,COLUMN."
        )
    return read


def of_other_type(condition: Condition, column_type: str) -> DataError:
    """Return the error for values that a column of a type is not compared with."""
    return DataError(
        f"A filter compares the field {condition.field[:80]!r}, of type {column_type}, with a "
        f"{type_of(condition)}; numbers are compared with numbers, booleans with one or several "
        "booleans, and texts, dates (such as '2026-01-31') and UUIDs with texts."
    )
