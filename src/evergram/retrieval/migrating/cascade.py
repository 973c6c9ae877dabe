"""Re-rank an old index's hits with a new model's vectors, computed at their first use and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from evergram.errors import DataError, ShapeError
from evergram.stores.rows import Floats, Hits, check_k
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_vectors

# Embeds objects by their ids, an array of n: float [n, D].
Encode = Callable[[pa.Array], npt.NDArray[np.floating]]
# Hits to re-rank of each query.
DEPTH = 200


class KeptVectors:
    """A new model's vectors of the objects that a search has touched: an index migrates by use.

    Args:
        encode: the new model, called once for each object and never again.
        dim: D of its vectors.

    >>> import numpy as np
    >>> import pyarrow as pa
    >>> from evergram.retrieval.migrating.cascade import KeptVectors
    >>> kept = KeptVectors(lambda ids: np.array([[i.as_py(), 1.0] for i in ids]), dim=2)
    >>> kept.of(pa.array([7, 3, 7]))[:, 0].tolist(), kept.of(pa.array([3])).shape, len(kept)
    ([7.0, 3.0, 7.0], (1, 2), 2)
    """

    def __init__(self, encode: Encode, dim: int) -> None:
        self.encode = encode
        self.dim = dim
        self._rows: dict[int | str, int] = {}
        self._vectors = np.empty((0, dim), np.float32)

    def __len__(self) -> int:
        """The number of objects whose vector was computed."""
        return len(self._rows)

    def of(self, ids: pa.Array) -> Floats:
        """Return the new vectors of objects, float32 [n, D]; those not yet kept are computed.

        Raises: ShapeError: `encode` returned another number of vectors, or of other dims.
            DataError: one is not finite. Nothing of such an answer is kept.
        """
        asked = ids.to_pylist()
        missing = list(dict.fromkeys(id_ for id_ in asked if id_ not in self._rows))
        if missing:
            computed = np.asarray(self.encode(pa.array(missing, ids.type)), dtype=np.float32)
            self._keep(missing, computed)
        vectors: Floats = self._vectors[[self._rows[id_] for id_ in asked]]
        return vectors

    def ids(self) -> pa.Array:
        """Return the ids that are kept, in the order in which they were first asked for."""
        return pa.array(list(self._rows))

    def save(self, path: Path) -> None:
        """Write ids and vectors, whole or not at all, in the format of the path's suffix.

        Raises: DataError: nothing is kept yet, or the file cannot be written.
        """
        if not len(self):
            raise DataError("No vector is kept yet, so there is nothing to write; search first.")
        kept = self._vectors[: len(self)]
        write_vectors(path, [(self.ids(), torch.from_numpy(kept.copy()))])

    def load(self, path: Path) -> None:
        """Keep the vectors of a file that `save` wrote, too, or that was computed elsewhere.

        Raises: DataError: the file cannot be read. ShapeError: its vectors are of another dim.
        """
        file = open_embeddings(path)
        for ids, vectors in file.blocks():
            known = pa.array([id_ not in self._rows for id_ in ids.to_pylist()], pa.bool_())
            fresh = vectors.float().numpy()[known.to_numpy(zero_copy_only=False)]
            self._keep(ids.filter(known).to_pylist(), fresh)

    def _keep(self, ids: Sequence[int | str], vectors: Floats) -> None:
        if vectors.shape != (len(ids), self.dim):
            raise ShapeError(
                f"The new vectors of {len(ids)} objects are {list(vectors.shape)}; "
                f"[{len(ids)}, {self.dim}] is needed."
            )
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            raise DataError(
                f"The new vector of {ids[int(finite.argmin())]!r} has a NaN or an infinity; give "
                "a finite one."
            )
        end = len(self) + len(ids)
        if end > len(self._vectors):
            grown = np.empty((max(end, 2 * len(self._vectors)), self.dim), np.float32)
            grown[: len(self)] = self._vectors[: len(self)]
            self._vectors = grown
        self._vectors[len(self) : end] = vectors
        self._rows.update(zip(ids, range(len(self), end), strict=True))


def cascade(first: Sequence[Hits], queries: Floats, kept: KeptVectors, k: int) -> list[Hits]:
    """Return the k best of each query's first hits, by their new vectors.

    The first hits may come from the old index by the query's old vector, or by its new vector
    through the way back; `DEPTH` of them is a usual number. What they miss cannot come back.

    Args:
        first: for each query, its hits in the old index.
        queries: [Q, D], by the new model.
        kept: the new vectors; all that this call lacks are computed in one call of `encode`.
    Returns: hits with the inner products ⟨query, new vector⟩ as scores; ties in the order of
        `first`.
    Raises: ShapeError: there is not one list of hits for each query, or the dims differ. DataError:
        k is below 1; or as of `KeptVectors.of`.
    """
    check_k(k)
    if queries.ndim != 2 or len(first) != len(queries) or queries.shape[1] != kept.dim:
        raise ShapeError(
            f"Queries are {list(queries.shape)}; [{len(first)}, {kept.dim}] is needed, one for "
            "each list of hits."
        )
    if not any(map(len, first)):
        return list(first)
    kept.of(pc.unique(pa.concat_arrays([hits.ids for hits in first if len(hits)])))
    ranked = []
    for hits, query in zip(first, queries, strict=True):
        scores = (kept.of(hits.ids) @ query).astype(np.float32) if len(hits) else hits.scores
        best = np.argsort(-scores, kind="stable")[:k]
        ranked.append(Hits(hits.ids.take(pa.array(best)), scores[best], hits.versions[best]))
    return ranked
