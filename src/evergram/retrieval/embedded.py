"""Embeddings as a reader, or a client of the service, returns them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.stores.store import Floats


@dataclass(frozen=True)
class Embedded:
    """Embeddings in the order of the ids that were asked for.

    Args:
        version: j, the version they are read as.
        ids: [n], as asked.
        vectors: float32 [n, D_j]; zeros where an id is not stored.
        sources: [n], the version that each was computed from; -1 if the id is not stored.
    """

    version: int
    ids: pa.Array
    vectors: Floats
    sources: npt.NDArray[np.int64]

    @property
    def counts(self) -> dict[int, int]:
        """Return how many were computed from each version."""
        return dict(Counter(self.sources.tolist()))

    @property
    def missing(self) -> pa.Array:
        """The ids that are not stored."""
        return self.ids.filter(pa.array(self.sources < 0))
