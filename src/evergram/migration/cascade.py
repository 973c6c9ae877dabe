"""Re-rank an old index's hits with a new model's vectors, computed at their first use and kept."""

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
        self._vectors: dict[int | str, Floats] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of objects whose vector was computed."""
        return len(self._vectors)

    def of(self, ids: pa.Array) -> Floats:
        """Return the new vectors of objects, float32 [n, D]; those not yet kept are computed.

        Raises: ShapeError: `encode` returned another number of vectors, or of other dims.
            DataError: one is not finite; or another thread called `drop_after` meanwhile. Nothing
            of such an answer is kept.
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
        """Return those of the ids whose vector is not kept, each once."""
        with self._lock:
            absent = dict.fromkeys(id_ for id_ in ids.to_pylist() if id_ not in self._vectors)
        return pa.array(list(absent), ids.type)

    def rows(self, start: int = 0, stop: int | None = None) -> tuple[pa.Array, Floats]:
        """Return ids [n] and vectors [n, D], in the order in which they were first asked for."""
        with self._lock:
            rows = list(islice(self._vectors.items(), start, stop))
        vectors = np.empty((len(rows), self.dim), np.float32)
        for row, (_, vector) in enumerate(rows):
            vectors[row] = vector
        return pa.array([id_ for id_, _ in rows]), vectors

    def drop_after(self, count: int) -> None:
        """Forget all but the first `count` vectors: the model has turned out to be another."""
        with self._lock:
            self._vectors = dict(islice(self._vectors.items(), count))

    def save(self, path: Path, encoder: TextEncoderRecord | None = None) -> None:
        """Write ids and vectors, whole or not at all, in the format of the path's suffix.

        Args:
            encoder: written into the file, so that `plan_rest` can tell whose vectors they are;
                `texts.record_of` returns it.
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
        for ids, vectors in open_embeddings(path).blocks():
            self.keep(ids, vectors.float().numpy())

    def keep(self, ids: pa.Array, vectors: Floats) -> None:
        """Keep vectors [n, D] of ids that have none yet; of an id that is there twice, the first.

        Raises: ShapeError, DataError: they are no finite vectors of these dims.
        """
        if vectors.shape != (len(ids), self.dim):
            raise ShapeError(
                f"The new vectors of {len(ids)} objects are {list(vectors.shape)}; "
                f"[{len(ids)}, {self.dim}] is needed."
            )
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            raise DataError(
                f"The new vector of {ids[int(finite.argmin())].as_py()!r} has a NaN or an "
                "infinity; give a finite one."
            )
        with self._lock:
            for id_, vector in zip(ids.to_pylist(), vectors.copy(), strict=True):
                self._vectors.setdefault(id_, vector)


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
    kept.of(_touched(first))
    return [
        by_vectors(hits, kept.of(hits.ids), query, metric).first(k) if len(hits) else hits
        for hits, query in zip(first, queries, strict=True)
    ]


def _touched(hits: Sequence[Hits]) -> pa.Array:
    """Return the ids of all hits, each once."""
    return pc.unique(joined_ids([h.ids for h in hits if len(h)], pa.string()))


class EncodingLimitError(DataError):
    """A search would have more objects encoded than it may."""


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
    """Return the k best of each query by own vectors of a version, of the best by the stored rows.

    The stored rows, most of them of an older version, are searched by `old_queries`, or by the
    queries through the backward transform; the best `rerank` are then ranked by the vectors that
    the version's own model gives them: the stored one where the row has moved already, else a kept
    one, else one that is computed now. Once every stored row is of the version, this is
    `Reader.search`, and nothing is computed.

    Args:
        queries: [Q, D_j] or [D_j], in the space of version j.
        kept: vectors of version j, and its encoder.
        version: j; production by default.
        rerank: hits of each query to re-rank, at least k. What they miss cannot come back.
        side, metric, ids, filter: as for `Reader.search`.
        most: objects that may be encoded; any number by default.
        old_queries: returns the same queries as an older version's own model makes them, [Q, D], of
            the version that it is given; None where it cannot. With it, this is the *cascade* of
            `plan-migration`, and without, its *bridge_cascade*.
    Returns: one for each query; `versions` are all the version that was asked for.
    Raises: as `Reader.search` and `KeptVectors.of`; DataError: `rerank` is below k; ShapeError:
        kept vectors are of another dim. EncodingLimitError: more than `most` objects have neither
        a stored nor a kept vector.
    """
    check_k(k)
    if rerank < k:
        raise DataError(f"rerank is {rerank}; it must be at least k, {k}.")
    target = reader.lineage.resolve(version)
    dim = reader.lineage.manifest(target).dim
    if kept.dim != dim:
        raise ShapeError(
            f"Kept vectors have dim {kept.dim}, and version {target} has {dim}; give those of "
            "that version."
        )
    oldest = reader.oldest_row(target, side)
    if oldest is None or oldest == target:
        return reader.search(queries, k, target, side, metric, ids, filter=filter)
    # Rows of versions before and after j are both read at the oldest: every way leads back.
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
        raise EncodingLimitError(
            f"{computed} objects would have to be encoded, and one search may have {most} encoded; "
            "send fewer queries at a time, or re-rank fewer hits."
        )
    # What is stored is not kept, too.
    all_vectors = KeptVectors(kept.of, dim)
    all_vectors.keep(own, vectors)
    chosen = reader.default_metric(target, side) if metric is None else metric
    ranked = cascade(first, asked, all_vectors, k, chosen)
    return [Hits(h.ids, h.scores, np.full(len(h), target, np.int64)) for h in ranked]
