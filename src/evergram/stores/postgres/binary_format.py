"""PostgreSQL's binary formats of parameters and rows, by numpy for all rows at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evergram.stores.store import Floats

BIGINT = 20  # its oid, the same in every PostgreSQL


class Raw:
    """A parameter in binary format; the cast in the query says of what type."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def layout(dim: int) -> np.dtype[Any]:
    """A vector [D] as `vector_send` gives it."""
    return np.dtype([("dim", ">i2"), ("unused", ">i2"), ("values", ">f4", dim)])


def vector(values: Floats) -> Raw:
    """[D] as a vector."""
    filled = np.zeros(1, dtype=layout(len(values)))
    filled["dim"], filled["values"] = len(values), values
    return Raw(filled.tobytes())


def vectors(values: Floats, oid: int) -> Raw:
    """[n, D] as an array of vectors; `oid` is that of the type vector in this database."""
    dim = values.shape[1]
    items = np.zeros(len(values), dtype=[("bytes", ">i4"), ("item", layout(dim))])
    items["bytes"] = items.dtype["item"].itemsize
    items["item"]["dim"], items["item"]["values"] = dim, values
    return _array(items, oid)


def integers(values: npt.NDArray[np.int64]) -> Raw:
    """[n] as an array of bigint."""
    items = np.zeros(len(values), dtype=[("bytes", ">i4"), ("item", ">i8")])
    items["bytes"], items["item"] = 8, values
    return _array(items, BIGINT)


def _array(items: npt.NDArray[Any], oid: int) -> Raw:
    # One dimension, no nulls, the type of elements, how many, counted from 1; none: no dimension.
    header = [1, 0, oid, len(items), 1] if len(items) else [0, 0, oid]
    return Raw(np.array(header, dtype=">i4").tobytes() + items.tobytes())
