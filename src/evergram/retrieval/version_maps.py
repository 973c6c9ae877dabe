"""Maps from the version of stored rows to the requested one, backward or forward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from evergram.errors import DataError, LineageError, ShapeError
from evergram.lineage.lineage import Lineage
from evergram.stores.store import Doubles, Floats, Rows, Space
from evergram.tracing import span

T = TypeVar("T")
# Scale of stored squared norms. For vectors of length up to some hundreds, the norm is then a small
# coordinate that hardly changes an inner-product graph. A power of two scales exactly.
NORM_SCALE = 2.0**-10


@dataclass(frozen=True)
class AffineMap:
    """z̃_j = W z_v + b in float32, ready for rows.

    Args:
        transposed: Wᵀ [D_v, D_j]; None for the identity.
        offset: b [D_j]; None if it is zero.
    """

    transposed: Floats | None
    offset: Floats | None

    def rows(self, vectors: Floats) -> Floats:
        """Return rows [n, D_v] of version v as version j reads them, [n, D_j]."""
        if self.transposed is None:
            return np.ascontiguousarray(vectors)
        mapped: Floats = vectors @ self.transposed
        return mapped if self.offset is None else mapped + self.offset

    def norms(self, stored: Floats) -> Doubles:
        """Return ‖z̃_j‖² [n], scaled, of rows whose first D_v coordinates are the vector."""
        dim = None if self.transposed is None else len(self.transposed)
        read = self.rows(stored[:, :dim]).astype(np.float64)
        norms: Doubles = np.einsum("nd,nd->n", read, read) * NORM_SCALE
        return norms

    def queries(self, queries: Floats) -> tuple[Floats, Floats | None]:
        """Return queries q_j [Q, D_j] as q_v [Q, D_v] and c [Q]: ⟨q_j, z̃_j⟩ = ⟨q_v, z_v⟩ + c.

        Source: docs/method.md, "One index for all versions".
        """
        if self.transposed is None:
            return queries, None
        # A BLAS kernel may set the invalid flag for finite numbers (it reads past the end of rows).
        with np.errstate(over="ignore", invalid="ignore"):
            turned: Floats = queries @ self.transposed.T
            return turned, None if self.offset is None else queries @ self.offset


class VersionMaps:
    """The maps between the versions of a lineage, created on first use."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._map: Callable[[int, int], AffineMap | None] = cache(self._make)  # None: not affine
        self._known: dict[object, tuple[object, Any]] = {}
        self._making = threading.Lock()

    def dim(self, version: int) -> int:
        return self._lineage.manifest(version).dim

    def rows(self, vectors: Floats, source: int, target: int) -> Floats:
        """Map vectors [n, D_source] to [n, D_target].

        Raises: LineageError: `target` is later, and no forward map was published between them.
        """
        with span("chain", source=source, target=target, rows=len(vectors)):
            affine_map = self._map(source, target)
            if affine_map is not None:
                return affine_map.rows(vectors)
            chain = self._lineage.chain
            # Some stores return read-only arrays, for which torch warns.
            own = torch.from_numpy(np.require(vectors, None, "W"))
            read: Floats = chain.apply(own, source, target).numpy()
            return read

    def affine(self, source: int, target: int) -> AffineMap:
        """Return the map from `source` to `target`.

        Raises: LineageError: it is not affine, or no forward map was published.
        """
        affine_map = self._map(source, target)
        if affine_map is None:
            raise LineageError(
                f"A transform between version {source} and version {target} is not affine, so an "
                "index over the one cannot be searched as the other: fetch embeddings at that "
                "version instead, or search at a version after the last such transform."
            )
        return affine_map

    def norms(self, vectors: Floats, source: int) -> Floats:
        """Return ‖z̃_j‖² of rows [n, D_source] at each version j up to `source`, [n, source + 1].

        They are scaled by `NORM_SCALE`, and stored after the vector. Overflow gives infinity.
        """
        columns = []
        for target in range(source + 1):
            read = self.rows(vectors, source, target).astype(np.float64)
            columns.append((read**2).sum(axis=1) * NORM_SCALE)
        with np.errstate(over="ignore"):
            return np.stack(columns, axis=1).astype(np.float32)

    def once(self, key: object, state: object, make: Callable[[], T]) -> T:
        """Return `make()`, called once for each key and state of a store."""
        with self._making:
            known = self._known.get(key)
            if known is None or known[0] != state:
                known = self._known[key] = state, make()
        result: T = known[1]
        return result

    def _make(self, source: int, target: int) -> AffineMap | None:
        if source == target:
            return AffineMap(None, None)
        if source < target:
            parts = self._lineage.forward(source, target)
            if parts is None:
                raise LineageError(
                    f"Rows of version {source} cannot be read as the later version {target}: no "
                    "forward map was published between them. Refresh them with "
                    f"'evergram store backfill', or read at version {source} or before."
                )
        elif not self._lineage.chain.is_affine(source, target):
            return None
        else:
            parts = self._lineage.chain.affine(source, target)
        weight, offset = parts
        return AffineMap(
            np.ascontiguousarray(weight.numpy().T, dtype=np.float32),
            offset.numpy().astype(np.float32) if bool(offset.any()) else None,
        )


def checked_vectors(vectors: npt.ArrayLike, dim: int, version: int) -> Floats:
    """Return vectors as float32 [Q, D]. Raises: ShapeError. DataError: one is not finite."""
    try:
        if np.iscomplexobj(vectors):
            raise ValueError
        checked = np.ascontiguousarray(vectors, dtype=np.float32)
    except (ValueError, TypeError):
        raise ShapeError("Vectors must be numbers, all of one length.") from None
    checked = checked[None] if checked.ndim == 1 else checked
    if checked.ndim != 2 or checked.shape[1] != dim:
        raise ShapeError(
            f"Vectors are {list(checked.shape)}; those of version {version} have dim {dim}."
        )
    flat = checked.reshape(-1)
    # A finite sum of squares proves that all are finite, at a quarter of the cost.
    with np.errstate(over="ignore", invalid="ignore"):
        quick = bool(np.isfinite(np.dot(flat, flat)))
    if not quick and not np.isfinite(checked).all():
        raise DataError("A vector is not finite: it has a NaN or an infinity.")
    return checked


def stored_rows(maps: VersionMaps, space: Space, ids: pa.Array, vectors: np.ndarray) -> Rows:
    """Return vectors [n, D] as rows of a space, with norms if the space has them.

    Raises: DataError: a squared length overflows float32.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if space.dim > maps.dim(space.version):
        norms = maps.norms(vectors, space.version)
        long = np.flatnonzero(~np.isfinite(norms).all(axis=1) & np.isfinite(vectors).all(axis=1))
        if len(long):
            raise DataError(
                f"The vector of id {ids[long[0]].as_py()!r} of version {space.version} is too "
                "long: its squared length, there or read as a version before, is past float32; "
                "publish vectors that are scaled down."
            )
        vectors = np.concatenate([vectors, norms], axis=1)
    return Rows(space.version, ids, vectors)
