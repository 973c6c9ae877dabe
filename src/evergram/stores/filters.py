"""Filters by metadata, in the small form that a client of the service may send."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
    if not isinstance(conditions, Mapping) or not 1 <= len(conditions) <= MOST_FIELDS:
        raise DataError(f"A filter needs 1 to {MOST_FIELDS} fields: {FORM}.")
    read: list[Condition] = []
    for field, asked in conditions.items():
        if isinstance(asked, Mapping):
            parts = [(operator, [bound]) for operator, bound in asked.items()]
        else:
            parts = [("in", list(asked) if isinstance(asked, (list, tuple)) else [asked])]
        operators = SIGNS if isinstance(asked, Mapping) else ("in",)
        fits = isinstance(field, str) and _is_value(field) and bool(parts)
        for operator, values in parts:
            one_type = all(map(_is_value, values)) and len(set(map(_type, values))) == 1
            fits = fits and operator in operators and one_type and len(values) <= MOST_VALUES
        if not fits:
            raise DataError(
                f"The field {str(field)[:80]!r} of a filter is wrong; {FORM}, with 1 to "
                f"{MOST_VALUES:,} values of one type: texts without NUL, booleans, or finite "
                "numbers, the whole ones of at most 64 bits."
            )
        read += [Condition(field, operator, tuple(values)) for operator, values in parts]
    return read


def _is_value(value: object) -> bool:
    if isinstance(value, str):
        # Neither a NUL nor half of a pair of surrogates.
        return re.search("[\0\ud800-\udfff]", value) is None
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and -(2**63) <= value < 2**63


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


def moment_of(condition: Condition, text: str, column_type: str) -> datetime:
    """Return a date or a time, which without a zone is of UTC. Raises: DataError: it is none."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise DataError(
            f"A filter compares the field {condition.field[:80]!r}, of {column_type}, with "
            f"{text[:40]!r}; give a date such as '2026-01-31', and in a column of times perhaps "
            "'2026-01-31T12:00:00'."
        ) from None
