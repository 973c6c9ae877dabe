"""A few numbers by which a vector is known again, also where a store has rounded it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evergram.stores.store import Floats

# Sums over random signs, of each vector.
MARKS = 3
# Of a vector's length: between that of a vector rounded to float16, and any other vector's.
TOLERANCE = 2e-3


def marks_of(vectors: Floats) -> Floats:
    """Return the sums of each vector's coordinates under `MARKS` random signs, float32 [n, MARKS].

    Another vector at a distance d, in lengths of the vector, has marks so near by chance
    (0.8 · TOLERANCE / d)^MARKS of the time: once in five million for d = 0.3.
    """
    # The legacy generator, whose numbers do not change from version to version of NumPy.
    draw = np.random.RandomState(vectors.shape[1])
    signs = 2.0 * draw.randint(0, 2, (vectors.shape[1], MARKS)) - 1.0
    marks: Floats = (vectors.astype(np.float64) @ signs).astype(np.float32)
    return marks


def same_marks(vectors: Floats, marks: Floats) -> npt.NDArray[np.bool_]:
    """Return which vectors [n, D] are those that the marks [n, MARKS] were made of."""
    return near(marks_of(vectors), marks, np.linalg.norm(vectors.astype(np.float64), axis=1))


def near(marks: Floats, others: Floats, lengths: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which marks [n, MARKS] are of vectors of these lengths [n] that are the same."""
    apart = np.abs(marks.astype(np.float64) - others).max(axis=1, initial=0.0)
    same: npt.NDArray[np.bool_] = apart <= TOLERANCE * lengths
    return same
