"""Lists of ids, one a query, as people have them; without torch, for clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from evergram.errors import DataError

# Ids of one query's candidates, or a list of such lists; weights and values have the same form.
Lists: TypeAlias = Sequence[Any]


def as_lists(lists: Lists, what: str) -> list[list[Any]]:
    """Return lists of lists: one, if it is a flat list. Raises: DataError: neither, or empty."""
    outer = _as_list(lists)
    if outer is None:
        raise DataError(
            f"{what} is of type {type(lists).__name__}; give a list of candidates' ids, or a list "
            "of such lists."
        )
    inner = [_as_list(row) for row in outer]
    rows = [row for row in inner if row is not None]
    if rows and len(rows) < len(inner):
        raise DataError(f"{what} has lists beside single ids; give one list for each query.")
    rows = rows or [outer]
    empty = [i for i, row in enumerate(rows) if not row]
    if empty:
        raise DataError(
            f"Query {empty[0] + 1} of {len(rows)} has no {what}; its vector is made of at least "
            "one candidate."
        )
    return rows


def _as_list(value: Any) -> list[Any] | None:
    """Return a sequence, an array or a tensor as a list; None for one thing by itself."""
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return list(value.to_pylist())
    if hasattr(value, "tolist") and hasattr(value, "ndim"):  # an array, or a tensor
        return list(value.tolist()) if value.ndim else None
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    return list(value) if is_list else None
