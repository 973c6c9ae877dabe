"""From the version a row was made with to the version it is asked for, back or forward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from evergram.errors import LineageError
from evergram.lineage.lineage import Lineage
from evergram.stores.store import Floats

# A stored squared norm is scaled by this: beside a vector of length up to some hundreds it is then
# a small coordinate, and a graph built on inner products of stored rows is that of the vectors.
# A power of two loses nothing.
NORM_SCALE = 2.0**-10


@dataclass(frozen=True)
class Way:
    """z̃_j = W z_v + b in float32, ready for rows.

    Args:
        transposed: Wᵀ [D_v, D_j]; None where v is j, and nothing is done.
        offset: b [D_j], None where it is zero.
    """

    transposed: Floats | None
    offset: Floats | None

    def rows(self, vectors: Floats) -> Floats:
        """[n, D_v] to [n, D_j]."""
        if self.transposed is None:
            return np.ascontiguousarray(vectors)
        found: Floats = vectors @ self.transposed
        return found if self.offset is None else found + self.offset

    def queries(self, queries: Floats) -> tuple[Floats, Floats | None]:
        """q_j [Q, D_j] to q_v [Q, D_v] and c [Q] with ⟨q_j, z̃_j⟩ = ⟨q_v, z_v⟩ + c.

        Source: docs/method.md, "One index for all versions".
        """
        if self.transposed is None:
            return queries, None
        turned: Floats = queries @ self.transposed.T
        return turned, None if self.offset is None else queries @ self.offset


class Ways:
    """All ways between the versions of a lineage, each made once."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._made: dict[tuple[int, int], Way | None] = {}

    def rows(self, vectors: Floats, source: int, target: int) -> Floats:
        """Vectors [n, D_source] as `target` reads them, [n, D_target].

        Raises: LineageError: there is no way forward.
        """
        way = self._way(source, target)
        if way is not None:
            return way.rows(vectors)
        found = self._lineage.chain.apply(torch.from_numpy(vectors), source, target)
        read: Floats = found.numpy()
        return read

    def affine(self, source: int, target: int) -> Way:
        """Raises: LineageError: there is none, or it is not affine."""
        way = self._way(source, target)
        if way is None:
            raise LineageError(
                f"Version {source} leads back to version {target} by a transform that is not "
                "affine, so an index over the one cannot be searched as the other: fetch "
                "embeddings at that version instead, or search at a version from which on all "
                "transforms are affine."
            )
        return way

    def norms(self, vectors: Floats, source: int) -> Floats:
        """‖z̃_j‖² of rows [n, D_source] at each version j up to `source`, scaled; [n, source + 1].

        They are stored as coordinates after the vector's own. What is past float32 is infinite.
        """
        columns = []
        for target in range(source + 1):
            read = self.rows(vectors, source, target).astype(np.float64)
            columns.append((read**2).sum(axis=1) * NORM_SCALE)
        with np.errstate(over="ignore"):
            return np.stack(columns, axis=1).astype(np.float32)

    def _way(self, source: int, target: int) -> Way | None:
        """None where it is not affine."""
        key = source, target
        if key not in self._made:
            self._made[key] = self._make(source, target)
        return self._made[key]

    def _make(self, source: int, target: int) -> Way | None:
        if source == target:
            return Way(None, None)
        if source < target:
            found = self._lineage.forward(source, target)
            if found is None:
                raise LineageError(
                    f"Rows of version {source} cannot be read as the later version {target}: no "
                    "forward map was published between them. Refresh them with 'evergram "
                    f"backfill', or read at version {source} or before."
                )
        elif not self._lineage.chain.is_affine(source, target):
            return None
        else:
            found = self._lineage.chain.affine(source, target)
        weight, offset = found
        return Way(
            np.ascontiguousarray(weight.numpy().T, dtype=np.float32),
            offset.numpy().astype(np.float32) if bool(offset.any()) else None,
        )
