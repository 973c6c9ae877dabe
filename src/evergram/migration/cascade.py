"""Re-rank an old index's hits by a new model's vectors, which are computed on demand and cached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from evergram.errors import DataError, ShapeError
from evergram.retrieval.metric_search import Metric, by_vectors
from evergram.retrieval.reader import Reader, Version
from evergram.stores.filters import Filter
from evergram.stores.store import Floats, Hits, check_k, joined_ids
from evergram.texts.record import TextEncoderRecord
from evergram.vector_files.open_embeddings import TEXT_ENCODER, open_embeddings, write_vectors

# Maps n ids to the new model's vectors of these objects, [n, D].
Encode = Callable[[pa.Array], npt.NDArray[np.floating]]
DEPTH = 200  # hits to re-rank per query


class KeptVectors:
    """A cache of a new model's vectors, filled by searches. Thread-safe: two threads may encode the
    same object, whose first vector is kept.

    Args:
        encode: the new model, called for objects that are not in the cache.
        dim: D of its vectors.
        batch: maximum objects per call of `encode`, cached after each call; unlimited by default.

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
        self._vectors: dict[int | str, Floats] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of cached vectors."""
        return len(self._vectors)

    def of(self, ids: pa.Array) -> Floats:
        """Return the new vectors of objects, float32 [n, D], computing those that are missing.

        Raises: ShapeError, DataError: see `keep`, or another thread called `drop_after` meanwhile.
        """
        missing = self.missing(ids)
        size = self.batch or max(1, len(missing))
        for part in (missing.slice(at, size) for at in range(0, len(missing), size)):
            self.keep(part, np.asarray(self.encode(part), dtype=np.float32))
        with self._lock:
            found = [self._vectors.get(id_) for id_ in ids.to_pylist()]
        vectors = [vector for vector in found if vector is not None]
        if len(vectors) < len(found):
            raise DataError("Vectors were dropped while they were read; ask again.")
        return np.stack(vectors) if vectors else np.empty((0, self.dim), np.float32)

    def missing(self, ids: pa.Array) -> pa.Array:
        """Return the distinct ids that have no cached vector."""
        with self._lock:
            absent = dict.fromkeys(id_ for id_ in ids.to_pylist() if id_ not in self._vectors)
        return pa.array(list(absent), ids.type)

    def rows(self, start: int = 0, stop: int | None = None) -> tuple[pa.Array, Floats]:
        """Return ids [n] and vectors [n, D] in the order in which they were cached."""
        with self._lock:
            rows = list(islice(self._vectors.items(), start, stop))
        vectors = np.empty((len(rows), self.dim), np.float32)
        for row, (_, vector) in enumerate(rows):
            vectors[row] = vector
        return pa.array([id_ for id_, _ in rows]), vectors

    def drop_after(self, count: int) -> None:
        """Forget all but the first `count` vectors, for when the encoder has changed."""
        with self._lock:
            self._vectors = dict(islice(self._vectors.items(), count))

    def save(self, path: Path, encoder: TextEncoderRecord | None = None) -> None:
        """Write ids and vectors atomically, in the format of the path's suffix, with the record of
        the encoder that `plan_rest` needs. Raises: DataError: there are none, or it fails."""
        if not len(self):
            raise DataError("No vector is kept yet, so there is nothing to write; search first.")
        ids, vectors = self.rows()
        record = {} if encoder is None else {TEXT_ENCODER: encoder.model_dump_json()}
        write_vectors(path, [(ids, torch.from_numpy(vectors))], record)

    def load(self, path: Path) -> None:
        """Add the vectors of a file. Raises: DataError: the file cannot be read. ShapeError: its
        vectors have another dim."""
        for ids, vectors in open_embeddings(path).blocks():
            self.keep(ids, vectors.float().numpy())

    def keep(self, ids: pa.Array, vectors: Floats) -> None:
        """Add vectors [n, D]; an id that already has a vector keeps it. Raises: ShapeError: they
        have another shape. DataError: one is not finite."""
        if vectors.shape != (len(ids), self.dim):
            raise ShapeError(
                f"The new vectors of {len(ids)} objects are {list(vectors.shape)}; "
                f"[{len(ids)}, {self.dim}] is needed."
            )
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            wrong = ids[int(finite.argmin())].as_py()
            raise DataError(f"The new vector of {wrong!r} has a NaN or an infinity.")
        with self._lock:
            for id_, vector in zip(ids.to_pylist(), vectors.copy(), strict=True):
                self._vectors.setdefault(id_, vector)


def cascade(
    first: Sequence[Hits], queries: Floats, kept: KeptVectors, k: int, metric: Metric = "ip"
) -> list[Hits]:
    """Re-rank each query's hits by their new vectors, and return the k best.

    Args:
        first: each query's hits in the old index, usually `DEPTH` of them.
        queries: [Q, D], from the new model.
        kept: the new vectors; missing ones are computed first.
        metric: "ip", ⟨q, z⟩; "l2", −‖q − z‖²; "cosine".
    Returns: hits with their new scores; ties keep the order of `first`.
    Raises: ShapeError: the numbers of queries and lists differ, or the dims do. DataError: k is
        below 1, the metric is unknown, or see `KeptVectors.of`.
    """
    check_k(k)
    if metric not in get_args(Metric):
        raise DataError(f"There is no metric {metric!r}; there is ip, l2 and cosine.")
    if queries.ndim != 2 or len(first) != len(queries) or queries.shape[1] != kept.dim:
        raise ShapeError(
            f"Queries are {list(queries.shape)}; [{len(first)}, {kept.dim}] is needed, one for "
            "each list of hits."
        )
    kept.of(_touched(first))
    return [
        by_vectors(hits, kept.of(hits.ids), query, metric).first(k) if len(hits) else hits
        for hits, query in zip(first, queries, strict=True)
    ]


def _touched(hits: Sequence[Hits]) -> pa.Array:
    return pc.unique(joined_ids([h.ids for h in hits if len(h)], pa.string()))


class EncodingLimitError(DataError):
    """A search would have to encode more objects than it may."""


def reranked_search(
    reader: Reader,
    queries: npt.ArrayLike,
    kept: KeptVectors,
    k: int = 10,
    version: Version = None,
    *,
    rerank: int = DEPTH,
    side: str | None = None,
    metric: Metric | None = None,
    ids: pa.Array | Sequence[int | str] | None = None,
    filter: Filter | None = None,
    most: int | None = None,
    old_queries: Callable[[int], npt.ArrayLike | None] | None = None,
) -> list[Hits]:
    """Search the stored rows, and re-rank the best hits by a version's own vectors.

    A hit's own vector is the stored one if its row has been migrated, else the cached one, else it
    is computed. Once all stored rows are of the version, this is `Reader.search`.

    Args:
        queries: [Q, D_j] or [D_j], in the space of version j (production by default).
        kept: vectors of version j, and its encoder.
        rerank: hits to re-rank per query, at least k.
        side, metric, ids, filter: as for `Reader.search`.
        most: maximum objects to encode; unlimited by default.
        old_queries: maps an older version to the same queries by its own model, [Q, D], or to None,
            to search its rows (a *cascade*). Without it, the queries are transformed back for that
            (*bridge_cascade*).
    Returns: the k best hits per query; their `versions` are all j.
    Raises: as `Reader.search` and `KeptVectors.of`. DataError: `rerank` is below k. ShapeError:
        cached vectors have another dim. EncodingLimitError: more than `most` objects would have to
        be encoded.
    """
    check_k(k)
    if rerank < k:
        raise DataError(f"rerank is {rerank}; it must be at least k, {k}.")
    target = reader.lineage.resolve(version)
    dim = reader.lineage.manifest(target).dim
    if kept.dim != dim:
        raise ShapeError(f"Kept vectors have dim {kept.dim}; those of version {target}, dim {dim}.")
    oldest = reader.oldest_row(target, side)
    if oldest is None or oldest == target:
        return reader.search(queries, k, target, side, metric, ids, filter=filter)
    # Transforms lead backward, so all rows can be read as the oldest version.
    start = min(oldest, target)
    asked = reader.queries(queries, target)
    proposing = None if old_queries is None or start == target else old_queries(start)
    if proposing is None:
        proposing = reader.transform(asked, target, start)
    first = reader.search(proposing, rerank, start, side, metric, ids, filter=filter)
    if not any(map(len, first)):
        return first
    touched = _touched(first)
    own, vectors = reader.own_rows(touched, target, side)
    others = touched.filter(pc.invert(pc.is_in(touched, value_set=own)))
    if most is not None and (computed := len(kept.missing(others))) > most:
        allowed = f"{computed} objects would have to be encoded, and a search may encode {most}"
        raise EncodingLimitError(f"{allowed}; send fewer queries at a time, or re-rank fewer hits.")
    # A second cache, so that stored vectors are not copied into `kept`.
    all_vectors = KeptVectors(kept.of, dim)
    all_vectors.keep(own, vectors)
    chosen = reader.default_metric(target, side) if metric is None else metric
    ranked = cascade(first, asked, all_vectors, k, chosen)
    return [Hits(h.ids, h.scores, np.full(len(h), target, np.int64)) for h in ranked]
