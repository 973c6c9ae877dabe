"""Re-rank an old index's hits with a new model's vectors, computed at their first use and kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from evergram.errors import DataError, ShapeError
from evergram.retrieval.metric_search import Metric, by_vectors
from evergram.stores.rows import Floats, Hits, check_k
from evergram.texts.record import TextEncoderRecord
from evergram.vector_files.open_embeddings import TEXT_ENCODER, open_embeddings
from evergram.vector_files.writers import write_vectors

# Embeds objects by their ids, an array of n: float [n, D].
Encode = Callable[[pa.Array], npt.NDArray[np.floating]]
# Hits to re-rank of each query.
DEPTH = 200


class KeptVectors:
    """A new model's vectors of the objects that a search has touched: an index migrates by use.

    Several threads may use one. The lock is not held while `encode` runs, so two that lack the same
    object at the same time may both have it encoded; the first vector is kept.

    Args:
        encode: the new model, called for objects whose vector is not kept.
        dim: D of its vectors.
        batch: objects of one call of `encode`, each kept before the next; all by default.

    >>> import numpy as np
    >>> import pyarrow as pa
    >>> from evergram.migration.cascade import KeptVectors
    >>> kept = KeptVectors(lambda ids: np.array([[i.as_py(), 1.0] for i in ids]), dim=2)
    >>> kept.of(pa.array([7, 3, 7]))[:, 0].tolist(), kept.of(pa.array([3])).shape, len(kept)
    ([7.0, 3.0, 7.0], (1, 2), 2)
    """

    def __init__(self, encode: Encode, dim: int, batch: int | None = None) -> None:
        self.encode: Encode = encode
        self.dim: int = dim
        self.batch: int | None = batch
        self._rows: dict[int | str, int] = {}
        self._vectors = np.empty((0, dim), np.float32)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of objects whose vector was computed."""
        return len(self._rows)

    def of(self, ids: pa.Array) -> Floats:
        """Return the new vectors of objects, float32 [n, D]; those not yet kept are computed.

        Raises: ShapeError: `encode` returned another number of vectors, or of other dims.
            DataError: one is not finite; or another thread called `drop_after` meanwhile. Nothing
            of such an answer is kept.
        """
        asked = ids.to_pylist()
        missing = self.missing(ids)
        size = self.batch or max(1, len(missing))
        for part in (missing.slice(at, size) for at in range(0, len(missing), size)):
            computed = np.asarray(self.encode(part), dtype=np.float32)
            with self._lock:
                self._keep(part.to_pylist(), computed)
        with self._lock:
            rows = [self._rows.get(id_, -1) for id_ in asked]
            if min(rows, default=0) < 0:
                raise DataError("Vectors were dropped while they were read; ask again.")
            vectors: Floats = self._vectors[rows]
        return vectors

    def missing(self, ids: pa.Array) -> pa.Array:
        """Return those of the ids whose vector is not kept, each once."""
        with self._lock:
            absent = dict.fromkeys(id_ for id_ in ids.to_pylist() if id_ not in self._rows)
        return pa.array(list(absent), ids.type)

    def ids(self) -> pa.Array:
        """Return the ids that are kept, in the order in which they were first asked for."""
        return self.rows()[0]

    def rows(self, start: int = 0, stop: int | None = None) -> tuple[pa.Array, Floats]:
        """Return ids [n] and vectors [n, D], in the order in which they were first asked for."""
        with self._lock:
            ids = list(self._rows)[start:stop]
            return pa.array(ids), self._vectors[start : start + len(ids)].copy()

    def drop_after(self, count: int) -> None:
        """Forget all but the first `count` vectors: the model has turned out to be another."""
        with self._lock:
            for id_ in list(self._rows)[count:]:
                del self._rows[id_]

    def save(self, path: Path, encoder: TextEncoderRecord | None = None) -> None:
        """Write ids and vectors, whole or not at all, in the format of the path's suffix.

        Args:
            encoder: written into the file, so that `finish_migration` can tell whose vectors they
                are; `texts.record_of` returns it.
        Raises: DataError: nothing is kept yet, or the file cannot be written.
        """
        if not len(self):
            raise DataError("No vector is kept yet, so there is nothing to write; search first.")
        ids, vectors = self.rows()
        record = {} if encoder is None else {TEXT_ENCODER: encoder.model_dump_json()}
        write_vectors(path, [(ids, torch.from_numpy(vectors))], record)

    def load(self, path: Path) -> None:
        """Keep the vectors of a file that `save` wrote, too, or that was computed elsewhere.

        Raises: DataError: the file cannot be read. ShapeError: its vectors are of another dim.
        """
        file = open_embeddings(path)
        for ids, vectors in file.blocks():
            with self._lock:
                self._keep(ids.to_pylist(), vectors.float().numpy())

    def _keep(self, ids: Sequence[int | str], vectors: Floats) -> None:
        """Append the vectors of ids that are not kept yet. The caller holds the lock."""
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
        # Of an id that is there twice, as in a file of another program, the first row counts.
        fresh = {id_: row for row, id_ in reversed(list(enumerate(ids))) if id_ not in self._rows}
        if len(fresh) < len(ids):
            rows = sorted(fresh.values())
            ids, vectors = [ids[row] for row in rows], vectors[rows]
        end = len(self) + len(ids)
        if end > len(self._vectors):
            grown = np.empty((max(end, 2 * len(self._vectors)), self.dim), np.float32)
            grown[: len(self)] = self._vectors[: len(self)]
            self._vectors = grown
        self._vectors[len(self) : end] = vectors
        self._rows.update(zip(ids, range(len(self), end), strict=True))


def cascade(
    first: Sequence[Hits], queries: Floats, kept: KeptVectors, k: int, metric: Metric = "ip"
) -> list[Hits]:
    """Return the k best of each query's first hits, by their new vectors.

    The first hits may come from the old index by the query's old vector, or by its new vector
    through the backward transform; `DEPTH` of them is a usual number. What they miss cannot come
    back.

    Args:
        first: for each query, its hits in the old index.
        queries: [Q, D], by the new model.
        kept: the new vectors; all that this call lacks are computed in one call of `encode`.
        metric: "ip", ⟨q, z⟩; "l2", −‖q − z‖²; "cosine".
    Returns: hits with the scores of query and new vector; ties in the order of `first`.
    Raises: ShapeError: there is not one list of hits for each query, or the dims differ. DataError:
        k is below 1, or there is no such metric; or as for `KeptVectors.of`.
    """
    check_k(k)
    if metric not in get_args(Metric):
        raise DataError(f"There is no metric {metric!r}; there is ip, l2 and cosine.")
    if queries.ndim != 2 or len(first) != len(queries) or queries.shape[1] != kept.dim:
        raise ShapeError(
            f"Queries are {list(queries.shape)}; [{len(first)}, {kept.dim}] is needed, one for "
            "each list of hits."
        )
    if not any(map(len, first)):
        return list(first)
    kept.of(pc.unique(pa.concat_arrays([hits.ids for hits in first if len(hits)])))
    return [
        by_vectors(hits, kept.of(hits.ids), query, metric).first(k) if len(hits) else hits
        for hits, query in zip(first, queries, strict=True)
    ]
