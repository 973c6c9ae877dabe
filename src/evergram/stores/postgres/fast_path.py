"""The fast path around psycopg: PostgreSQL's binary formats, by NumPy for all rows at once.

psycopg converts a parameter and a cell at a time, and knows no vectors. What this file gains beside
vectors as text is in docs/stores.md, of `python -m benchmarks fast-paths`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evergram.stores.store import Floats

BIGINT = 20  # the oid of bigint, the same in every PostgreSQL


class Raw:
    """A parameter in binary format; a cast in the query says its type."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def layout(dim: int) -> np.dtype[Any]:
    """Return the layout of a vector [D] as `vector_send` writes it."""
    return np.dtype([("dim", ">i2"), ("unused", ">i2"), ("values", ">f4", dim)])


def vector(values: Floats) -> Raw:
    """Return the parameter of a vector [D]."""
    filled = np.zeros(1, dtype=layout(len(values)))
    filled["dim"], filled["values"] = len(values), values
    return Raw(filled.tobytes())


def vectors(values: Floats, oid: int) -> Raw:
    """Return the parameter of an array of vectors [n, D].

    Args:
        oid: of the type vector in this database.
    """
    dim = values.shape[1]
    items = np.zeros(len(values), dtype=[("bytes", ">i4"), ("item", layout(dim))])
    items["bytes"] = items.dtype["item"].itemsize
    items["item"]["dim"], items["item"]["values"] = dim, values
    return _array(items, oid)


def integers(values: npt.NDArray[np.int64]) -> Raw:
    """Return the parameter of an array of bigint [n]."""
    items = np.zeros(len(values), dtype=[("bytes", ">i4"), ("item", ">i8")])
    items["bytes"], items["item"] = 8, values
    return _array(items, BIGINT)


def _array(items: npt.NDArray[Any], oid: int) -> Raw:
    # Dimensions, nulls, type of elements; then, unless it is empty, how many, counted from 1.
    header = [1, 0, oid, len(items), 1] if len(items) else [0, 0, oid]
    return Raw(np.array(header, dtype=">i4").tobytes() + items.tobytes())
