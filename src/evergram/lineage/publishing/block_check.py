"""What may be published as a side's ids and vectors; the rest is refused before it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.errors import DataError, ShapeError
from evergram.ids import first_missing, missing_sentence

Block = tuple[pa.Array, Tensor]


def checked_block(ids: Any, vectors: Any, side: str, dim: int) -> Block:
    """Return ids as int64 or string [N], and vectors as a tensor of floats [N, D].

    Args:
        ids: an Arrow or NumPy array or a list, of integers or texts.
        vectors: a torch tensor or a NumPy array.
        side: to call them in an error.
        dim: D.
    Raises: DataError: an id is missing or of another type, or the vectors are no floats.
        ShapeError: they are not [N, D].
    """
    keys = _ids(ids, side)
    if (row := first_missing(keys)) >= 0:
        where = f"Row {row} of the {side} embeddings"
        raise DataError(missing_sentence(where, "its id", keys[row].as_py()))
    rows = torch.from_numpy(_native(vectors)) if _is_floats(vectors) else vectors
    dense = isinstance(rows, Tensor) and rows.layout == torch.strided
    if not dense or not rows.is_floating_point():
        kind = getattr(rows, "dtype", type(rows).__name__)
        raise DataError(
            f"The {side} embeddings are of {kind}; they must be floats in a dense torch tensor or "
            "a NumPy array."
        )
    if rows.ndim != 2 or rows.shape != (len(keys), dim):
        raise ShapeError(
            f"The {side} embeddings are {list(rows.shape)} for {len(keys)} ids; with dim {dim} "
            f"they must be [{len(keys)}, {dim}]."
        )
    return keys, rows.detach()


def checked_blocks(blocks: Iterable[tuple[Any, Any]], side: str, dim: int) -> Iterator[Block]:
    """Yield each block as `checked_block` returns it. The ids of a side are held in memory.

    Raises: as it; DataError: also if an id occurs twice, if blocks have ids of different types, or
        if there is no row.
    """
    seen: list[pa.Array] = []
    for ids, vectors in blocks:
        keys, rows = checked_block(ids, vectors, side, dim)
        if seen and keys.type != seen[0].type:
            raise DataError(
                f"The {side} ids are {seen[0].type} in one block and {keys.type} in another; give "
                "all as integers or all as texts."
            )
        seen.append(keys)
        yield keys, rows
    everything = pa.chunked_array(seen) if seen else pa.chunked_array([], pa.int64())
    if not len(everything):
        raise DataError(f"There are no {side} embeddings to publish; a side has at least one row.")
    if pc.count_distinct(everything).as_py() < len(everything):
        counts = pc.value_counts(everything)
        twice = counts.filter(pc.greater(counts.field("counts"), 1))[0].as_py()
        raise DataError(
            f"The {side} id {twice['values']!r} occurs {twice['counts']} times; an id has one "
            "vector a version."
        )


def _is_floats(vectors: Any) -> bool:
    return isinstance(vectors, np.ndarray) and vectors.dtype.kind == "f" and vectors.itemsize <= 8


def _native(vectors: np.ndarray) -> np.ndarray:
    """Return an array as torch takes it: of native byte order, and not read backwards."""
    return np.ascontiguousarray(vectors, vectors.dtype.newbyteorder("="))


def _ids(ids: Any, side: str) -> pa.Array:
    try:
        keys = ids if isinstance(ids, pa.Array | pa.ChunkedArray) else pa.array(ids)
        keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
        keys = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
        if pa.types.is_integer(keys.type):
            return keys.cast(pa.int64())
        if any(is_kind(keys.type) for is_kind in _TEXTS):
            return keys.cast(pa.string())
        kind = str(keys.type)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        kind = " ".join(str(error).split()).rstrip(".")
    raise DataError(
        f"The {side} ids cannot be published ({kind}); they must be integers below 2⁶³ or texts, "
        "all of one type."
    )


_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
