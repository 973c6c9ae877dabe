"""The interface of embedding stores, and its types: rows of one side, each with the version that
embedded it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, ClassVar, Self, TypeAlias, TypeVar
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import (
    DataError,
    EvergramError,
    IntegrityError,
    ShapeError,
    StoreError,
    reason_and_remedy,
)
from evergram.ids import is_text
from evergram.reopening import Reopened
from evergram.stores.filters import Filter

T = TypeVar("T")
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Scores: TypeAlias = npt.NDArray[Any]  # float32 or float64
Checks = npt.NDArray[np.uint32]
Keys = npt.NDArray[Any]
Places = npt.NDArray[np.int64]
# A function of stored vectors [n, D] that returns one number each, [n].
Column: TypeAlias = Callable[[Floats], Doubles]
# A version to search in, queries [Q, D], offsets [Q], and the column of their last coordinate.
Part: TypeAlias = tuple[int, Floats, Floats, Column | None]

# Names that every database and file system accepts unchanged.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}")
MOST_HITS = 2**31 - 1  # maximum number of hits per query
BATCH = 10_000  # rows refreshed or restored at once
SUMMED = 1024  # rows whose products are recomputed in float64 at once
ID_TYPES = {"int64": pa.int64(), "string": pa.string()}  # the id types; a store has one of them


@dataclass(frozen=True)
class Space:
    """The space of the vectors of one version.

    Args:
        version: its number in the lineage.
        dim: D of the stored vectors.
        fingerprint: the version's fingerprint; a store rejects a different one for the same number.
    """

    version: int
    dim: int
    fingerprint: str


@dataclass(frozen=True)
class Rows:
    """Rows that were embedded with one version.

    Args:
        version: the version of their space.
        ids: [n], int64 or string, distinct.
        vectors: float32 [n, D], finite.
    Raises: ShapeError: wrong shape. DataError: wrong dtype.
    """

    version: int
    ids: pa.Array
    vectors: Floats

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.ids) != len(self.vectors):
            raise ShapeError(
                f"Rows have {len(self.ids)} ids and vectors of shape {list(self.vectors.shape)}; "
                "vectors must be [n, D], one per id."
            )
        if self.vectors.dtype != np.float32:
            raise DataError(f"Vectors are {self.vectors.dtype}; they must be float32.")

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, ids: pa.Array) -> Rows:
        return self._where(pc.is_in(self.ids, value_set=ids))

    def without(self, ids: pa.Array) -> Rows:
        return self._where(pc.invert(pc.is_in(self.ids, value_set=ids)))

    def _where(self, mask: pa.Array) -> Rows:
        vectors = self.vectors[mask.to_numpy(zero_copy_only=False)]
        return Rows(self.version, self.ids.filter(mask), vectors)


@dataclass(frozen=True)
class Hits:
    """The results of one query, best first.

    Args:
        ids: [n].
        scores: float32 [n], descending.
        versions: int64 [n], the version with which each row was embedded.
    """

    ids: pa.Array
    scores: Floats
    versions: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, k: int) -> Hits:
        """Return the first k hits."""
        return Hits(self.ids.slice(0, k), self.scores[:k], self.versions[:k])

    def where(self, kept: npt.NDArray[np.bool_]) -> Hits:
        """Return the hits where the mask `kept`, bool [n], is True."""
        return Hits(self.ids.filter(pa.array(kept)), self.scores[kept], self.versions[kept])

    def ranked(self, scores: npt.NDArray[np.floating[Any]]) -> Hits:
        """Return the hits with new scores [n], best first; ties keep their order."""
        order = np.argsort(-scores, kind="stable")
        ids = self.ids.take(pa.array(order))
        # Scores that overflow float32 become infinite, which is allowed.
        with np.errstate(over="ignore"):
            return Hits(ids, scores[order].astype(np.float32), self.versions[order])


@dataclass(frozen=True)
class Embedded:
    """Embeddings in the order of the requested ids.

    Args:
        version: j, the version as which they are read.
        ids: [n], the requested ids.
        vectors: float32 [n, D_j]; zeros for ids that are not stored.
        sources: [n], the version from which each was computed; -1 for ids that are not stored.
    """

    version: int
    ids: pa.Array
    vectors: Floats
    sources: npt.NDArray[np.int64]

    @property
    def counts(self) -> dict[int, int]:
        """The number of vectors computed from each version; -1 counts missing ids."""
        return dict(Counter(self.sources.tolist()))

    @property
    def missing(self) -> pa.Array:
        """The ids that are not stored."""
        return self.ids.filter(pa.array(self.sources < 0))


def row_checks(rows: Rows) -> Checks:
    """Return a checksum of each row's id, version and vector, uint32 [n].

    It is stored with the row and compared when the row is read, so that a damaged vector or a
    vector of another id is never returned. It is Σ_i m_i w_i modulo 2³², with w the 32-bit words of
    a row and m odd: a change of one word always changes it, and changes of several words go
    undetected with probability 2⁻³². Unlike a CRC, it is vectorised over rows.
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
    # Add 1, so that the checksum of a zero vector with id 0 is not 0.
    checks += np.uint32((1 + int(odd[0]) * rows.version) & 0xFFFFFFFF)
    return checks


@lru_cache
def _multipliers(count: int) -> Checks:
    """Return pseudo-random odd numbers: MurmurHash3's finaliser applied to 1, 2, …"""
    mixed = np.arange(1, count + 1, dtype=np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    return mixed | np.uint32(1)


def places_among(
    ids: pa.Array, others: pa.Array
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Return a mask of the ids that are among `others`, bool [n], and their indices there."""
    places = pc.index_in(ids, value_set=others)
    return places.is_valid().to_numpy(zero_copy_only=False), places.drop_null().to_numpy()


def keys_of(ids: pa.Array) -> Keys:
    """Return numbers [n] for sorting and finding ids: integers themselves, and hashes of texts that
    are the same in every process. Different texts may have the same key, so compare ids as well."""
    if pa.types.is_integer(ids.type):
        return np.asarray(ids.to_numpy(zero_copy_only=False), dtype=np.int64)
    hashes = (text_key(key) for key in ids.to_pylist())
    return np.fromiter(hashes, dtype=np.uint64, count=len(ids))


def find(
    keys: Keys, wanted: pa.Array, wanted_keys: Keys, ids_at: Callable[[Places], pa.Array]
) -> tuple[Places, Places]:
    """Return the indices of the wanted ids [n] that exist, and the rows where they are.

    Args:
        keys: the keys of the existing ids, ascending, at least one.
        ids_at: returns the ids of given rows.
    """
    if not pa.types.is_integer(wanted.type):
        begin = np.searchsorted(keys, wanted_keys)
        counts = np.searchsorted(keys, wanted_keys, "right") - begin
        # Check all rows with an equal key, because several texts may share it.
        which = np.repeat(np.arange(len(wanted_keys)), counts)
        rows = np.arange(len(which)) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
        row_ids = ids_at(rows)
        equal = pc.equal(row_ids, wanted.take(pa.array(which)).cast(row_ids.type))
        same = equal.to_numpy(zero_copy_only=False)
        return which[same], rows[same]
    first, count = keys[0], len(keys)
    if int(keys[-1]) - int(first) == count - 1:
        # The ids are consecutive, so subtraction finds them. Ids below the first wrap around to
        # large numbers.
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
    """Concatenate arrays of ids; without any, return an empty array of this type."""
    return pa.concat_arrays(parts) if parts else pa.array([], id_type)


def joined_hits(parts: Sequence[Hits], id_type: pa.DataType) -> Hits:
    """Concatenate lists of hits; there may be none."""
    scores = [np.zeros(0, np.float32), *(part.scores for part in parts)]
    versions = [np.zeros(0, np.int64), *(part.versions for part in parts)]
    ids = joined_ids([part.ids for part in parts], id_type)
    return Hits(ids, np.concatenate(scores), np.concatenate(versions))


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows of one version, at least one part."""
    ids = pa.concat_arrays([rows.ids for rows in parts])
    return Rows(parts[0].version, ids, np.concatenate([rows.vectors for rows in parts]))


def unchanged(stored: Iterable[Rows], rows: Rows, tolerance: float = 0.0) -> pa.Array:
    """Return the ids of stored rows of the same version whose vectors equal these, up to a relative
    error; `rows` has all their ids."""
    same = [rows.ids[:0]]
    for own in (part for part in stored if part.version == rows.version):
        expected = rows.vectors[pc.index_in(own.ids, value_set=rows.ids).to_numpy()]
        apart = np.linalg.norm(own.vectors.astype(np.float64) - expected, axis=1)
        equal = apart <= tolerance * np.linalg.norm(expected, axis=1)
        same.append(own.ids.filter(pa.array(equal)))
    return pa.concat_arrays(same)


def merge_hits(parts: Sequence[Hits], k: int) -> Hits:
    """Merge lists of hits into the best k, each id once: at the latest version that has it, with
    its largest score there."""
    parts = [part for part in parts if len(part)] or list(parts[:1])
    if len(parts) == 1:
        return parts[0].first(k)
    hits = joined_hits(parts, parts[0].ids.type)
    order = np.lexsort((-hits.scores, -hits.versions))
    codes = hits.ids.dictionary_encode().indices.to_numpy()[order]
    first = order[np.sort(np.unique(codes, return_index=True)[1])]
    best = first[np.argsort(-hits.scores[first], kind="stable")][:k]
    return Hits(hits.ids.take(pa.array(best)), hits.scores[best], hits.versions[best])


def best_first(ids: pa.Array, scores: Scores, k: int | None = None) -> tuple[pa.Array, Scores]:
    """Return the ids with the k largest scores, best first, and the scores."""
    order = np.argsort(-scores, kind="stable")[:k]
    return ids.take(pa.array(order)), scores[order]


def check_k(k: object) -> None:
    """Raises: DataError: `k` is not an integer from 1 to `MOST_HITS`."""
    if not isinstance(k, (int, np.integer)) or not 1 <= k <= MOST_HITS:
        raise DataError(f"k is {k}; it must be an integer from 1 to {MOST_HITS:,}.")


def products(queries: Floats, block: Floats) -> Floats:
    """Return inner products [Q, b], never NaN; products that overflow float32 are infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(queries) == 1:
            scores = np.asarray((block @ queries[0])[None])
        else:
            scores = np.asarray(queries @ block.T)
        # If a partial sum overflows float32, the result is NaN or infinite, even if the true sum is
        # small. The sum of squares detects that in one pass (or overflows itself, from 1e19 on).
        if not np.isfinite(np.vdot(scores, scores)):
            rows = np.flatnonzero(~np.isfinite(scores).all(axis=0))
            for start in range(0, len(rows), SUMMED):
                part = rows[start : start + SUMMED]
                scores[:, part] = queries.astype(np.float64) @ block[part].T.astype(np.float64)
    return scores


def scores_by(metric: str, queries: Doubles, vectors: Doubles) -> Doubles:
    """Return the scores [Q, n] of queries [Q, D] with vectors [n, D], for the metric "ip",
    "cosine" (0 for a zero vector) or "l2" (−‖q − z‖²)."""
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
    """Return, for each query [Q, D], the k best rows of all blocks, by exact comparison; ties go to
    the first row. A repeated id may be repeated in the result."""
    doubles = queries.astype(np.float64)
    scored = (
        (rows.ids, scores_by(metric, doubles, rows.vectors.astype(np.float64))) for rows in blocks
    )
    # Scores that overflow float32 become infinite, which is allowed.
    with np.errstate(over="ignore"):
        return [
            Hits(ids, scores.astype(np.float32), np.full(len(ids), version, np.int64))
            for ids, scores in best_of(len(queries), k, scored, id_type)
        ]


def best_of(
    queries: int, k: int, scored: Iterable[tuple[pa.Array, Scores]], id_type: pa.DataType
) -> list[tuple[pa.Array, Scores]]:
    """Return, for each query, the ids [≤k] with the largest scores, best first, and the scores;
    ties go to the first.

    Args:
        scored: blocks of ids [b] with their scores [Q, b].
    """
    best: list[tuple[pa.Array, Scores]] = [(pa.array([], id_type), np.zeros(0, np.float32))]
    best *= queries
    for ids, block in scored:
        for i, scores in enumerate(block):
            # The k largest and all that equal the k-th, in the order of the rows.
            first = np.arange(len(scores))
            if len(scores) > k:
                first = np.flatnonzero(-scores <= np.partition(-scores, k - 1)[k - 1])
            keys = pa.concat_arrays([best[i][0], ids.take(pa.array(first))])
            best[i] = best_first(keys, np.concatenate([best[i][1], scores[first]]), k)
    return best


class ReadableStore(Reopened, ABC):
    """The reading interface of a store, or of a consistent view of it. `Store` adds writing.

    Args:
        address: the address for `open_store`, without a password.
        id_type: the type of its ids, int64 or string.
    Raises, anywhere: StoreError: it cannot be reached or read. IntegrityError: a row is damaged.
    """

    kind: ClassVar[str]
    adopted: ClassVar[bool] = False  # whether it is the user's own table, see `AdoptedStore`
    address: str
    id_type: pa.DataType

    # A kind of store implements these, and a classmethod `open`.

    @property
    @abstractmethod
    def side(self) -> str | None:
        """The side of its rows, such as "candidate"; None until `take_side` sets it."""

    @abstractmethod
    def spaces(self) -> dict[int, Space]:
        """Return its spaces by version, ascending, including those without rows."""

    @abstractmethod
    def count(self) -> dict[int, int]:
        """Return the number of rows by version, for versions that have rows."""

    @abstractmethod
    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        """Return the rows of the stored ids, as parts with one version each, in any order; several
        parts may have the same version."""

    @abstractmethod
    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        """Yield all rows of a version, in blocks of at most `size`, in any order."""

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        """Return, for each query [Q, D], the ids [≤k] of a space with the largest inner products,
        best first, and the products [≤k]; if `ids` is given, only among these.

        Args:
            exact: compare all rows instead of using a graph index.
        """
        raise NotImplementedError

    @abstractmethod
    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        """Call `work` with a consistent view of the store, and return its result.

        In the view, a row that is being moved between versions is never missing.

        Args:
            work: reads through the view, without side effects: it may be called more than once,
                each time with a new view.
        """

    @abstractmethod
    def build_index(self) -> list[int]:
        """Build the store's native index, if it has one, for its larger spaces, and return the
        versions that are indexed now. Searches are then faster but may miss some of the best rows;
        rows may be written before and after. Raises: StoreError: the table is the user's own."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections."""

    # All kinds inherit these.

    def stale(self, target: int) -> list[int]:
        """Return the versions whose rows a backfill to `target` refreshes."""
        return [version for version in self.filled() if version != target]

    def bare_ids(self) -> Iterator[pa.Array]:
        """Yield the ids of rows without any vector, in blocks."""
        yield from ()

    def filled(self) -> dict[int, Space]:
        """Return the spaces that have a row, by version. Every search asks; a kind may answer
        without counting."""
        held = self.count()
        return {version: space for version, space in self.spaces().items() if version in held}

    def state(self, version: int) -> object:
        """Return what differs after a row of a version was added or replaced; it may be the same
        after one was removed. A kind that cannot tell returns another each time."""
        return object()

    def takes_columns(self, version: int) -> bool:
        """Return whether a search of a version may be given `columns`."""
        return False

    def where(self, conditions: Filter) -> Self:
        """Return a view of the rows whose metadata match a filter; see docs/stores.md, "Filters".
        Raises: DataError: the filter is wrong, or the store has no metadata, as all stores that
        Evergram writes."""
        raise DataError(
            f"{self.address} was written by Evergram and contains only ids and vectors, so it "
            "cannot be filtered by metadata: leave the filter out, search among 'ids', or read a "
            'table that has the metadata (docs/stores.md, "Your own table").'
        )

    def fetch(self, ids: pa.Array | Sequence[int | str]) -> list[Rows]:
        """Return the rows of the stored ids, as parts with one version each, in any order; several
        parts may have the same version."""
        wanted = self.as_ids(ids)
        if len(set(wanted.to_pylist())) < len(wanted):
            wanted = pc.unique(wanted)
        parts = []
        for rows, checks in self._read(wanted):
            self._verify(rows, checks)
            parts.append(rows)
        keys = joined_ids([rows.ids for rows in parts], self.id_type)
        if len(parts) <= 1 or len(pc.unique(keys)) == len(keys):
            return parts
        seen, latest = keys[:0], []
        for rows in sorted(parts, key=lambda r: -r.version):
            latest.append(rows.without(seen))
            seen = pa.concat_arrays([seen, rows.ids])
        return [rows for rows in latest if len(rows)]

    def scan(self, version: int | None = None, size: int = 65_536) -> Iterator[Rows]:
        """Yield all rows (of one version, if given), in blocks of at most `size`, in any order."""
        for number in self.spaces() if version is None else [version]:
            for rows, checks in self._scan(number, size):
                self._verify(rows, checks)
                yield rows

    def search(
        self,
        queries: Mapping[int, Floats],
        k: int,
        *,
        offsets: Mapping[int, Floats] | None = None,
        ids: pa.Array | Sequence[int | str] | None = None,
        exact: bool = False,
        columns: Mapping[int, Column] | None = None,
    ) -> list[Hits]:
        """Return, for each query, the k rows with the largest ⟨q_v, z⟩ + c_v, v the row's version.

        Args:
            queries: by version to search in, float32 [Q, D_v], with the same Q.
            k: at least 1; fewer hits are returned if there are fewer rows.
            offsets: c_v [Q] by version; 0 for versions that are left out.
            ids: search only among these.
            exact: do not use an index that is unreliable for these queries; a graph of inner
                products is unreliable for queries that are unlike the rows.
            columns: by version, computes one more coordinate of its rows, the last; where
                `takes_columns`. The store keeps the values.
        """
        check_k(k)
        columns, offsets = columns or {}, offsets or {}
        has = {v: space.dim + (v in columns) for v, space in self.spaces().items()}
        sizes = {len(q) for q in queries.values()}
        for version, block in queries.items():
            if block.ndim != 2 or block.shape[1] != has.get(version):
                raise ShapeError(
                    f"Queries for version {version} are {list(block.shape)}; they must be [Q, D] "
                    f"with D of that version, one of {has} here."
                )
        if len(sizes) > 1:
            raise ShapeError(
                f"Versions have {sorted(sizes)} queries; give each version the same number."
            )
        among = None if ids is None else pc.unique(self.as_ids(ids))
        zeros, parts = np.zeros(max(sizes, default=0), np.float32), list[Part]()
        # In ascending order: a row that is moved to a later version during the search leaves its
        # old space only after it is in the new one, which is searched later.
        for v, block in sorted(queries.items()):
            block = np.ascontiguousarray(block, dtype=np.float32)
            parts.append((v, block, offsets.get(v, zeros), columns.get(v)))
        return self._search(parts, k, among, exact) if len(zeros) else []

    def _search(self, parts: list[Part], k: int, ids: pa.Array | None, exact: bool) -> list[Hits]:
        """Search as `search` does. A kind that overrides it needs no `_nearest`."""
        hits: list[list[Hits]] = [[] for _ in parts[0][1]]
        for version, block, offsets, _ in parts:
            for i, (keys, scores) in enumerate(self._nearest(version, block, k, ids, exact)):
                versions = np.full(len(keys), version, dtype=np.int64)
                hits[i].append(Hits(keys, scores + offsets[i], versions))
        return [merge_hits(parts, k) for parts in hits]

    def as_ids(self, ids: pa.Array | Sequence[int | str]) -> pa.Array:
        """Convert ids to this store's type. Raises: DataError: one is null or has another type."""
        wanted = self.id_type
        if isinstance(ids, str | bytes):
            raise DataError(f"ids is the text {ids[:40]!r}; give a list, such as [{ids[:40]!r}].")
        try:
            array = ids if isinstance(ids, pa.Array) else pa.array(ids)
            if array.type == wanted and not array.null_count:
                return array
            if pa.types.is_null(array.type) and not len(array):
                array = array.cast(wanted)
            has_type = is_text if pa.types.is_string(wanted) else pa.types.is_integer
            if not has_type(array.type):
                raise DataError(f"Ids are {array.type}; in {self.address} they are {wanted}.")
            converted = array.cast(wanted)
        except (pa.ArrowException, OverflowError, TypeError, UnicodeError) as error:
            raise DataError(f"Ids must all be {wanted}, as in {self.address}: {error}.") from None
        if converted.null_count:
            raise DataError("An id is null; every row needs one.")
        return converted

    def _verify(self, rows: Rows, checks: Checks) -> None:
        wrong = np.flatnonzero(row_checks(rows) != checks)
        if len(wrong):
            raise IntegrityError(
                f"The row of id {rows.ids[wrong[0]]} in {self.address} is damaged (its checksum "
                "differs); write it again, or restore the store."
            )

    @property
    def absolute_address(self) -> str:
        """The address, independent of the current folder; equal if and only if the stores are."""
        return self.address

    def __reduce__(self) -> tuple[Any, ...]:
        kind: Any = type(self)
        return kind.open, (self.absolute_address,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Store(ReadableStore):
    """Embeddings of one side, searched by inner product within the space of each version. Ids are
    unique: writing an id replaces its existing row, whatever its version.

    `upsert`, `add_space`, `take_side` and `delete` are durable when they return. If a writer is
    killed, each row is in its old or its new state. An id may then be in two spaces until it is
    written again or `remove_superseded` is called: both rows are intact, `count` counts both, and
    searches, `fetch` and `scan` return only the later version's row.

    Raises, anywhere: StoreError: it cannot be reached, written or read. IntegrityError: a row is
        damaged.
    """

    # A kind of store implements these, and those of ReadableStore.

    @abstractmethod
    def _add_space(self, space: Space) -> None:
        """Add a space durably, unless another process has added it."""

    @abstractmethod
    def _set_side(self, side: str) -> None:
        """Set the side durably, unless it is set already."""

    @abstractmethod
    def _write(self, rows: Rows, checks: Checks) -> None:
        """Write rows into their space and remove their ids from all other spaces."""

    @abstractmethod
    def _delete(self, ids: pa.Array) -> None:
        """Remove the rows of ids; some may not exist."""

    # All kinds inherit these.

    def take_side(self, side: str) -> None:
        """Assign this store permanently to a side. Raises: IntegrityError: it has another one."""
        if self.side is None:
            self._set_side(side)
        if self.side != side:
            raise other_side(self, side)

    def add_space(self, space: Space) -> None:
        """Add the space of a version, unless it exists.

        Raises: IntegrityError: it exists with another fingerprint or dim.
        """
        existing = self.spaces().get(space.version)
        if existing is None:
            self._add_space(space)
            # Another process may have added a different one first.
            existing = self.spaces()[space.version]
        if existing != space:
            raise IntegrityError(
                f"{self.address} has version {space.version} with fingerprint "
                f"{existing.fingerprint} and dim {existing.dim}, not {space.fingerprint} and "
                f"{space.dim}: it belongs to another lineage; use another store."
            )

    def upsert(self, rows: Rows) -> None:
        """Write rows, replacing existing rows with the same ids.

        Raises: DataError: an id is repeated, null or has another type; a value is not finite; or
            the version has no space. ShapeError: wrong dim.
        """
        rows = self.checked(rows)
        if len(rows):
            self._write(rows, row_checks(rows))

    def checked(self, rows: Rows) -> Rows:
        """Validate rows and convert their ids to this store's type. Raises: as `upsert`."""
        space = self.spaces().get(rows.version)
        if space is None:
            raise DataError(
                f"{self.address} has no space for version {rows.version}; it has "
                f"{', '.join(map(str, self.spaces())) or 'none'}."
            )
        if rows.vectors.shape[1] != space.dim:
            raise ShapeError(
                f"Vectors have dim {rows.vectors.shape[1]}; version {rows.version} in "
                f"{self.address} has dim {space.dim}."
            )
        rows = Rows(rows.version, self.as_ids(rows.ids), rows.vectors)
        if len(rows) > len(pc.unique(rows.ids)):
            raise DataError("An id occurs twice in one upsert; give each id once.")
        bad = np.flatnonzero(~np.isfinite(rows.vectors).all(axis=1))
        if len(bad):
            raise DataError(f"The vector of id {rows.ids[bad[0]]} is not finite.")
        return rows

    def load(self, space: Space, blocks: Iterable[Rows]) -> int:
        """Write all rows of a version, block by block, and return their number.

        If it is killed, some rows have been written; it is safe to load them again.
        """
        self.add_space(space)
        total = 0
        for rows in blocks:
            self.upsert(rows)
            total += len(rows)
        return total

    def delete(self, ids: pa.Array | Sequence[int | str]) -> None:
        """Remove rows; ids that do not exist are ignored."""
        self._delete(self.as_ids(ids))

    def space_to_fill(self, plain: Space, with_norms: Space) -> Space:
        """Return which of two possible spaces of a version to write to: the one that exists."""
        return plain if self.spaces().get(plain.version) == plain else with_norms

    def begin(self, space: Space, side: str) -> None:
        """Prepare for `refresh` with rows of a space."""
        # After a kill, outdated rows may be left, hidden from `refresh`.
        self.remove_superseded()
        self.take_side(side)
        self.add_space(space)

    def refresh(self, rows: Rows, saved: Store) -> None:
        """Replace older rows of the same ids, after writing these to `saved`. Idempotent."""
        old = [stored for stored in self.fetch(rows.ids) if stored.version != rows.version]
        for version in {stored.version for stored in old}:
            saved.add_space(self.spaces()[version])
            saved.upsert(joined_rows([stored for stored in old if stored.version == version]))
        self.upsert(rows.only(joined_ids([stored.ids for stored in old], self.id_type)))

    def undo(self, version: int, source: ReadableStore, saved: Store) -> Iterator[tuple[int, int]]:
        """Put back the rows of `saved`, unless the store no longer has those of `source`. Yield the
        batches done and total, first before anything is written. Idempotent."""
        # Read all, so that damage is noticed now.
        batches = [rows.ids for rows in saved.scan(size=BATCH)]
        yield 0, len(batches)
        for done, ids in enumerate(batches, start=1):
            for old in saved.fetch(ids):
                for new in source.fetch(old.ids):
                    self.upsert(old.only(unchanged(self.fetch(new.ids), new)))
            yield done, len(batches)

    def remove_superseded(self) -> int:
        """Remove rows that a killed writer left behind although a later version has their id, and
        return their number. It is 0 for stores that write in one transaction."""
        return 0


def other_side(store: ReadableStore, side: str) -> IntegrityError:
    """Return the error for using a store for a side other than its own."""
    return IntegrityError(
        f"{store.address} is the store of side {store.side!r} and cannot hold side {side!r}; use "
        "another store."
    )


def checked_name(name: str) -> str:
    """Return the name of a store in a database. Raises: DataError: the name is not allowed."""
    if not NAME.fullmatch(name):
        raise DataError(
            f"{name!r} cannot be the name of a store; use at most 40 ASCII letters, digits, _ and "
            "-, not starting with -."
        )
    return name


def no_store(shown: str) -> DataError:
    return DataError(f"There is no store at {shown}; create it first.")


@contextmanager
def errors_as_store_errors(
    shown: str,
    todo: str = "check that it and its folder are readable and writable, and restore it from a "
    "copy or fill another",
) -> Iterator[None]:
    """Raise every error of a database client as a StoreError that says what to do."""
    try:
        yield
    except (EvergramError, GeneratorExit):
        raise
    except BaseException as error:
        # On a damaged file LanceDB raises PanicException, which is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        sentence = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        rest = reason_and_remedy(error) if isinstance(error, OSError) else f"{sentence}; {todo}"
        raise StoreError(f"{shown} cannot be reached, read or written: {rest}.") from error


def was_closed(shown: str) -> StoreError:
    return StoreError(f"{shown} was closed; open it again.")


def not_ours(what: str, shown: str) -> StoreError:
    """Return the error for an object of another program, such as "table emb-v1"."""
    return StoreError(
        f"There is a {what} that {shown} did not write; give another name after #, or rename it."
    )
