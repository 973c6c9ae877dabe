"""Metadata filters, in the simple form that clients of the service may send."""

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
    """One condition on a field: "in" with several values, or "gt", "gte", "lt" or "lte" with one.
    All values have the same type; ints and floats count as one type."""

    field: str
    operator: str
    values: tuple[Value, ...]


def read_conditions(conditions: Filter) -> list[Condition]:
    """Parse a filter into conditions that must all hold. Raises: DataError: it is malformed."""
    if not isinstance(conditions, Mapping) or not 1 <= len(conditions) <= MOST_FIELDS:
        raise DataError(f"A filter needs 1 to {MOST_FIELDS} fields: {FORM}.")
    parsed: list[Condition] = []
    for field, given in conditions.items():
        if isinstance(given, Mapping):
            parts = [(operator, [bound]) for operator, bound in given.items()]
        else:
            parts = [("in", list(given) if isinstance(given, (list, tuple)) else [given])]
        operators = SIGNS if isinstance(given, Mapping) else ("in",)
        is_valid = isinstance(field, str) and _is_value(field) and bool(parts)
        for operator, values in parts:
            one_type = all(map(_is_value, values)) and len(set(map(_type, values))) == 1
            is_valid = is_valid and operator in operators and one_type
            is_valid = is_valid and len(values) <= MOST_VALUES
        if not is_valid:
            raise DataError(
                f"The field {str(field)[:80]!r} of a filter is wrong; {FORM}, with 1 to "
                f"{MOST_VALUES:,} values of one type: texts without NUL, booleans, or finite "
                "numbers (integers of at most 64 bits)."
            )
        parsed += [Condition(field, operator, tuple(values)) for operator, values in parts]
    return parsed


def _is_value(value: object) -> bool:
    if isinstance(value, str):
        # No NUL and no lone surrogate.
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
    """Parse a filter. Raises: DataError: it is malformed, or it uses a field that the operator does
    not allow in filters."""
    parsed = read_conditions(conditions)
    for field in [condition.field for condition in parsed if condition.field not in allowed]:
        names = ", ".join(sorted(allowed))
        rule = f"allowed are {names}" if names else "no field is allowed"
        raise DataError(
            f"A filter uses the field {field[:80]!r}; {rule}. The operator sets the allowed fields "
            "in the store's address, by filter=COLUMN,COLUMN."
        )
    return parsed


def of_other_type(condition: Condition, column_type: str) -> DataError:
    """Return the error for values that cannot be compared with a column of this type."""
    return DataError(
        f"A filter compares the field {condition.field[:80]!r}, of type {column_type}, with a "
        f"{type_of(condition)}; compare numbers with numbers, booleans with booleans, and texts, "
        "dates (such as '2026-01-31') and UUIDs with texts."
    )


def moment_of(condition: Condition, text: str, column_type: str) -> datetime:
    """Parse a date or time; without a time zone it is in UTC. Raises: DataError: it is invalid."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise DataError(
            f"A filter compares the field {condition.field[:80]!r}, of {column_type}, with "
            f"{text[:40]!r}; give a date such as '2026-01-31', or for a column of times also "
            "'2026-01-31T12:00:00'."
        ) from None
