"""The values that stores exchange: spaces, rows with their checksums, and hits of a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, ShapeError

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Scores: TypeAlias = npt.NDArray[Any]  # float32 or float64
Checks = npt.NDArray[np.uint32]
Keys = npt.NDArray[Any]
Places = npt.NDArray[np.int64]

# Hits of a query that a search may return.
MOST_HITS = 2**31 - 1
# Rows whose products are summed anew in float64 at once.
SUMMED = 1024
# The types of ids; one store holds one of them.
ID_TYPES = {"int64": pa.int64(), "string": pa.string()}


@dataclass(frozen=True)
class Space:
    """The space of the vectors of one version.

    Args:
        version: its number in the lineage.
        dim: D of its vectors as they are stored.
        fingerprint: of the version; a store refuses another one for the same number.
    """

    version: int
    dim: int
    fingerprint: str


@dataclass(frozen=True)
class Rows:
    """Rows that were embedded with one version.

    Args:
        version: of their space.
        ids: [n], int64 or string, each once.
        vectors: float32 [n, D], finite.
    Raises: ShapeError, DataError: they are not that.
    """

    version: int
    ids: pa.Array
    vectors: Floats

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.ids) != len(self.vectors):
            raise ShapeError(
                f"Rows have {len(self.ids)} ids and vectors of shape {list(self.vectors.shape)}; "
                "vectors must be [n, D], one for each id."
            )
        if self.vectors.dtype != np.float32:
            raise DataError(f"Vectors are {self.vectors.dtype}; a store holds float32.")

    def __len__(self) -> int:
        return len(self.ids)

    def without(self, ids: pa.Array) -> Rows:
        kept = pc.invert(pc.is_in(self.ids, value_set=ids))
        vectors = self.vectors[kept.to_numpy(zero_copy_only=False)]
        return Rows(self.version, self.ids.filter(kept), vectors)


@dataclass(frozen=True)
class Hits:
    """The results of one query, best first.

    Args:
        ids: [n].
        scores: float32 [n], descending.
        versions: int64 [n], the version that each row was embedded with.
    """

    ids: pa.Array
    scores: Floats
    versions: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, k: int) -> Hits:
        """Return the best k."""
        return Hits(self.ids.slice(0, k), self.scores[:k], self.versions[:k])

    def where(self, kept: npt.NDArray[np.bool_]) -> Hits:
        """Return those that are kept, bool [n], in their order."""
        return Hits(self.ids.filter(pa.array(kept)), self.scores[kept], self.versions[kept])

    def ranked(self, scores: npt.NDArray[np.floating[Any]]) -> Hits:
        """Return them with other scores [n], best first; of one score in the order they have."""
        order = np.argsort(-scores, kind="stable")
        ids = self.ids.take(pa.array(order))
        # A score beyond float32 is infinite, which is no error of the program.
        with np.errstate(over="ignore"):
            return Hits(ids, scores[order].astype(np.float32), self.versions[order])


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


def row_checks(rows: Rows) -> Checks:
    """Return a checksum of id, version and vector of each row, uint32 [n].

    It is stored with the row and compared when the row is fetched, so that no damaged vector, and
    none under another id, is returned. It is Σ_i m_i w_i modulo 2³², with w the 32-bit words of a
    row and m odd: any change to one word changes it, and changes to several go unseen once in 2³².
    A CRC would do as much, but row by row; this is computed for all rows at once.
    """
    vectors = np.ascontiguousarray(rows.vectors, dtype="<f4").view("<u4")
    odd = _multipliers(vectors.shape[1] + 3)
    if pa.types.is_integer(rows.ids.type):
        keys = rows.ids.to_numpy().astype("<i8", copy=False).view("<u4").reshape(-1, 2)
    else:
        texts = (crc32(key.encode()) for key in rows.ids.to_pylist())
        keys = np.zeros((len(rows), 2), dtype=np.uint32)
        keys[:, 0] = np.fromiter(texts, dtype=np.uint32, count=len(rows))
    checks: Checks = np.einsum("nd,d->n", vectors, odd[3:], dtype=np.uint32)
    checks += keys @ odd[1:3]
    # Plus one, so that a row of zeros under id 0 has another checksum than zero.
    checks += np.uint32((1 + int(odd[0]) * rows.version) & 0xFFFFFFFF)
    return checks


@lru_cache
def _multipliers(count: int) -> Checks:
    """Return odd numbers without a pattern: the finaliser of MurmurHash3 of 1, 2, …"""
    mixed = np.arange(1, count + 1, dtype=np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    return mixed | np.uint32(1)


def places_among(
    ids: pa.Array, others: pa.Array
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Return which of the ids are among others, bool [n], and where there these are, in order."""
    places = pc.index_in(ids, value_set=others)
    return places.is_valid().to_numpy(zero_copy_only=False), places.drop_null().to_numpy()


def keys_of(ids: pa.Array) -> Keys:
    """Return numbers [n] by which ids are sorted and found: an integer's own, and a hash of a text,
    the same in every process. Two texts may have one key, so compare the ids as well."""
    if pa.types.is_integer(ids.type):
        return np.asarray(ids.to_numpy(zero_copy_only=False), dtype=np.int64)
    hashes = (text_key(key) for key in ids.to_pylist())
    return np.fromiter(hashes, dtype=np.uint64, count=len(ids))


def find(
    keys: Keys, wanted: pa.Array, wanted_keys: Keys, ids_at: Callable[[Places], pa.Array]
) -> tuple[Places, Places]:
    """Return which of the wanted ids [n] are among some, and their places there.

    Args:
        keys: of these ids, ascending, at least one.
        ids_at: returns the ids at some places.
    """
    if not pa.types.is_integer(wanted.type):
        begin = np.searchsorted(keys, wanted_keys)
        counts = np.searchsorted(keys, wanted_keys, "right") - begin
        # Several texts may have one key.
        which = np.repeat(np.arange(len(wanted_keys)), counts)
        places = np.arange(len(which)) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
        there = ids_at(places)
        equal = pc.equal(there, wanted.take(pa.array(which)).cast(there.type))
        same = equal.to_numpy(zero_copy_only=False)
        return which[same], places[same]
    first, count = keys[0], len(keys)
    if int(keys[-1]) - int(first) == count - 1:
        # Ids without a gap, as ids often are, are found by counting. What is smaller than the
        # first wraps around, and is then past the last.
        steps = (wanted_keys - first).view(np.uint64)
        which = np.flatnonzero(steps < count)
        return which, steps[which].astype(np.int64)
    at = np.searchsorted(keys, wanted_keys)
    at[at == count] = 0
    which = np.flatnonzero(keys[at] == wanted_keys)
    return which, at[which]


def text_key(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def joined_ids(parts: Sequence[pa.Array], id_type: pa.DataType) -> pa.Array:
    """Return ids one after the other; with no part, none of the type."""
    return pa.concat_arrays(parts) if parts else pa.array([], id_type)


def merge_hits(parts: Sequence[Hits], k: int) -> Hits:
    """Return the best k of several lists of hits, each id once: at the latest version that has it,
    with its largest score there."""
    parts = [part for part in parts if len(part)] or list(parts[:1])
    if len(parts) == 1:
        return parts[0].first(k)
    ids = pa.concat_arrays([part.ids for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    versions = np.concatenate([part.versions for part in parts])
    order = np.lexsort((-scores, -versions))
    codes = ids.dictionary_encode().indices.to_numpy()[order]
    first = order[np.sort(np.unique(codes, return_index=True)[1])]
    best = first[np.argsort(-scores[first], kind="stable")][:k]
    return Hits(ids.take(pa.array(best)), scores[best], versions[best])


def best_first(ids: pa.Array, scores: Scores, k: int | None = None) -> tuple[pa.Array, Scores]:
    """Return the ids with the k largest scores, best first, and the scores."""
    order = np.argsort(-scores, kind="stable")[:k]
    return ids.take(pa.array(order)), scores[order]


def check_k(k: object) -> None:
    """Raises: DataError: `k`, of a search, is not an integer from 1 to `MOST_HITS`."""
    if not isinstance(k, (int, np.integer)) or not 1 <= k <= MOST_HITS:
        raise DataError(
            f"k is {k}; it must be at least 1, and a whole number of at most {MOST_HITS:,}."
        )


def products(queries: Floats, block: Floats) -> Floats:
    """Return inner products [Q, b], none NaN; one too large for float32 is infinite, as in every
    store."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(queries) == 1:
            scores = np.asarray((block @ queries[0])[None])
        else:
            scores = np.asarray(queries @ block.T)
        # Where a part of a sum is past float32, the sum is NaN or infinite, though it may be small.
        # A sum of squares sees that in one pass, and is past float32 itself from 1e19 on.
        if not np.isfinite(np.vdot(scores, scores)):
            rows = np.flatnonzero(~np.isfinite(scores).all(axis=0))
            for start in range(0, len(rows), SUMMED):
                some = rows[start : start + SUMMED]
                scores[:, some] = queries.astype(np.float64) @ block[some].T.astype(np.float64)
    return scores


def scores_by(metric: str, queries: Doubles, vectors: Doubles) -> Doubles:
    """Return the scores [Q, n] of queries [Q, D] with vectors [n, D] by "ip", "cosine" (0 for a
    vector of zeros) or "l2", −‖q − z‖²."""
    products: Doubles = queries @ vectors.T
    if metric == "ip":
        return products
    squares = (vectors**2).sum(axis=1)
    if metric == "l2":
        distances = 2 * products - squares - (queries**2).sum(axis=1)[:, None]
        nearest: Doubles = np.minimum(distances, 0.0)
        return nearest
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.sqrt(squares)
    cosines: Doubles = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return cosines


def best_by(
    metric: str, queries: Floats, k: int, blocks: Iterable[Rows], version: int, id_type: pa.DataType
) -> list[Hits]:
    """Return for each query of [Q, D] the k best rows of some blocks, all of them compared; among
    rows of one score the first. An id that is twice may be twice among them."""
    asked = queries.astype(np.float64)
    scored = (
        (rows.ids, scores_by(metric, asked, rows.vectors.astype(np.float64))) for rows in blocks
    )
    # A score beyond float32 is infinite, which is no error of the program.
    with np.errstate(over="ignore"):
        return [
            Hits(ids, scores.astype(np.float32), np.full(len(ids), version, np.int64))
            for ids, scores in best_of(len(queries), k, scored, id_type)
        ]


def best_of(
    queries: int, k: int, scored: Iterable[tuple[pa.Array, Scores]], id_type: pa.DataType
) -> list[tuple[pa.Array, Scores]]:
    """Return for each query the ids [≤k] with the largest scores, best first, and the scores; of
    one score the first.

    Args:
        scored: blocks of ids [b] with their scores [Q, b].
    """
    best: list[tuple[pa.Array, Scores]] = [(pa.array([], id_type), np.zeros(0, np.float32))]
    best *= queries
    for ids, block in scored:
        for i, scores in enumerate(block):
            # The k largest in the order of the rows, and all that are equal to the k-th.
            first = np.arange(len(scores))
            if len(scores) > k:
                first = np.flatnonzero(-scores <= np.partition(-scores, k - 1)[k - 1])
            keys = pa.concat_arrays([best[i][0], ids.take(pa.array(first))])
            best[i] = best_first(keys, np.concatenate([best[i][1], scores[first]]), k)
    return best
