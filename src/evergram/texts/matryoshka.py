"""Vectors cut to their first coordinates, of encoders whose owner says that they may be.

Source: Kusupati et al., *Matryoshka Representation Learning*, NeurIPS 2022; the length of 1 after
the cut is that of OpenAI's field `dimensions`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evergram.errors import DataError
from evergram.texts.text_encoder import Vectors


def checked_dims(
    asked: int | None, dim: int, declared: Sequence[int], version: int | str
) -> int | None:
    """Return how many coordinates are kept; None if all are, as they are.

    Args:
        asked: None for all.
        dim: D of the version.
        declared: the numbers that its encoder's record allows besides D.
    Raises: DataError: another number.
    """
    if asked is None or asked == dim:
        return None
    if asked in declared:
        return asked
    if not declared:
        why = "its record declares no other number ('evergram vectors encode --matryoshka')"
    else:
        why = f"its record declares {', '.join(map(str, sorted(declared)))}"
    raise DataError(
        f"Version {version} has {dim} dimensions and is not cut to {asked}: {why}; give one that "
        "it has, or leave 'dimensions' out."
    )


def cut(vectors: Vectors, dims: int | None) -> Vectors:
    """Return the first coordinates [n, dims] of vectors [n, D], each row of length 1.

    A row of zeros stays one: it stands for an id that is not stored.

    Args:
        dims: None returns the vectors as they are.
    """
    if dims is None:
        return vectors
    kept = vectors[:, :dims].astype(np.float64)
    # Scaled first, so that no square is infinite or vanishes.
    kept /= np.maximum(np.abs(kept).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    unit = np.divide(kept, lengths, out=np.zeros_like(kept), where=lengths > 0)
    rows: Vectors = unit.astype(np.float32)
    return rows
