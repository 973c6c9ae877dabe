"""Filters as Qdrant's own, and conditions on which points are rows of a version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from evergram.errors import DataError
from evergram.stores.filters import Condition, Filter, check_allowed, read_conditions, type_of

# Qdrant compares bounds as doubles, which hold whole numbers up to here.
EXACT = 2**53


def filter_of(asked: Filter, allowed: Sequence[str]) -> Any:
    """Return a filter as a `models.Filter`.

    Args:
        asked: conditions; or a `models.Filter`, which is used as it is.
        allowed: fields of the payload that conditions may name.
    Raises: DataError: the filter is wrong.
    """
    from qdrant_client import models

    if isinstance(asked, Mapping):
        conditions = read_conditions(asked)
        for one in conditions:
            check_allowed(one, allowed)
        return models.Filter(must=[_condition(one) for one in conditions])
    if isinstance(asked, models.Filter):
        return asked
    raise DataError(
        "A filter of a Qdrant collection is a dictionary of conditions, or in Python a "
        "qdrant_client.models.Filter; Qdrant has no SQL."
    )


def _condition(condition: Condition) -> Any:
    from qdrant_client import models

    def of_field(**test: Any) -> Any:
        return models.FieldCondition(key=condition.field, **test)

    values: list[Any] = list(condition.values)
    sort = type_of(condition)
    if condition.operator != "in":
        return of_field(range=_range(condition, values[0]))
    if sort == "text":
        return of_field(match=models.MatchAny(any=values))
    if sort == "boolean":
        same = [of_field(match=models.MatchValue(value=value)) for value in values]
        return models.Filter(should=same)
    # Qdrant matches a whole number with whole numbers alone, and 3 shall be 3.0.
    equal = [of_field(range=models.Range(gte=v, lte=v)) for v in values if abs(v) <= EXACT]
    whole = [int(v) for v in values if v == int(v) and -(2**63) <= v < 2**63]
    if whole:
        equal.append(of_field(match=models.MatchAny(any=whole)))
    large = [v for v in values if isinstance(v, float) and abs(v) > EXACT]
    equal += [of_field(range=models.Range(gte=v, lte=v)) for v in large]
    return models.Filter(should=equal)


def _range(condition: Condition, bound: Any) -> Any:
    """Return a range of numbers, or of times, which without a zone are of UTC."""
    from qdrant_client import models

    named = condition.field[:80]
    if type_of(condition) == "number":
        if isinstance(bound, int) and abs(bound) > EXACT:
            raise DataError(
                f"A bound of field {named!r} is {bound}; Qdrant compares doubles, so give one from "
                f"{-EXACT} to {EXACT}."
            )
        return models.Range(**{condition.operator: bound})
    try:
        if type_of(condition) == "boolean":
            raise ValueError
        moment = datetime.fromisoformat(bound)
    except ValueError:
        raise DataError(
            f"A bound of field {named!r} is {str(bound)[:40]!r}; Qdrant orders numbers and times "
            "alone: give a number, or a date or a time such as '2026-01-31T12:00:00Z'."
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return models.DatetimeRange(**{condition.operator: moment})
