"""What stores of embeddings take and give, and their interface: rows of one side, each at the
version that made it."""

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

# Every database and file system takes such a name as it is.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}")
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


class ReadableStore(Reopened, ABC):
    """A store as it is read, or a view of it at one moment. Evergram also writes a `Store`.

    Args:
        address: what `open_store` opens, without a password.
        id_type: of its ids, int64 or string.
    Raises, anywhere: StoreError: it cannot be reached or read. IntegrityError: a row is not what
        was written.
    """

    kind: ClassVar[str]
    address: str
    id_type: pa.DataType

    # A kind of store implements these, and a classmethod `open`.

    @property
    @abstractmethod
    def side(self) -> str | None:
        """The side of its rows, such as "candidate"; None until `take_side` sets it."""

    @abstractmethod
    def spaces(self) -> dict[int, Space]:
        """Return its spaces by version, ascending, also those without rows."""

    @abstractmethod
    def count(self) -> dict[int, int]:
        """Return the number of rows of each version that has any."""

    @abstractmethod
    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        """Return the rows of the ids that are there, in parts of one version each, in any order;
        several parts may be of one version."""

    @abstractmethod
    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        """Yield all rows of a version, in blocks of at most `size`, in any order."""

    @abstractmethod
    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        """Return for each query of [Q, D] the ids [≤k] of a space with the largest inner products,
        best first, and the products [≤k]; among `ids` alone unless they are None.

        Args:
            exact: whether to compare all rows where the index is a graph.
        """

    @abstractmethod
    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        """Return what `work` returns for a view of the store at one moment.

        A row that others move between versions meanwhile is in one of them in the view, never in
        none.

        Args:
            work: reads through the view and does nothing else, as it may be called more than once,
                each time with another view.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections."""

    # All kinds inherit these.

    def filled(self) -> dict[int, Space]:
        """Return the spaces that have a row, by version. Every search asks; a kind may answer
        without counting."""
        held = self.count()
        return {version: space for version, space in self.spaces().items() if version in held}

    def state(self, version: int) -> object:
        """Return what differs after a row of a version was added or replaced; it may be the same
        after one was removed. A kind that cannot tell returns another each time."""
        return object()

    def where(self, conditions: Filter) -> Self:
        """Return a view of the rows whose metadata fulfil a filter; `docs/stores.md`, "Filters".

        Raises: DataError: the filter is wrong, or, in all stores that Evergram writes, there is no
            metadata.
        """
        raise DataError(
            f"{self.address} was written by Evergram and holds ids and vectors alone, so that it "
            "cannot be filtered by metadata: leave the filter out, search among 'ids', or read a "
            'table that has the metadata (docs/stores.md, "Your own table").'
        )

    def fetch(self, ids: pa.Array | Sequence[int | str]) -> list[Rows]:
        """Return the rows of the ids that are there, in parts of one version each, in any order;
        several parts may be of one version."""
        asked = self.as_ids(ids)
        if len(set(asked.to_pylist())) < len(asked):
            asked = pc.unique(asked)
        parts = []
        for rows, checks in self._read(asked):
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
        """Yield all rows (of a version), in blocks of at most `size`, in any order."""
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
    ) -> list[Hits]:
        """Return for each query the k rows with the largest ⟨q_v, z⟩ + c_v, v a row's version.

        Args:
            queries: for each version to search in, float32 [Q, D_v]; every Q is the same.
            k: at least 1; where there are fewer rows, fewer are returned.
            offsets: for a version, c_v [Q]; 0 where it is left out.
            ids: search among these alone.
            exact: whether to leave out an index that these queries may mislead, as a graph of
                inner products is by queries that rows are not like.
        """
        check_k(k)
        spaces = self.spaces()
        sizes = {len(q) for q in queries.values()}
        for version, block in queries.items():
            if block.ndim != 2 or version not in spaces or block.shape[1] != spaces[version].dim:
                has = {v: s.dim for v, s in spaces.items()}
                raise ShapeError(
                    f"Queries for version {version} are {list(block.shape)}; they must be [Q, D] "
                    f"with D of that version, one of {has} here."
                )
        if len(sizes) > 1:
            raise ShapeError(
                f"Versions have {sorted(sizes)} queries; give each version the same number."
            )
        among = None if ids is None else pc.unique(self.as_ids(ids))
        hits: list[list[Hits]] = [[] for _ in range(max(sizes, default=0))]
        # Ascending: a row that moves on meanwhile is left out of a space only when it is in a later
        # one, which is searched after.
        for version, block in sorted(queries.items()):
            added = None if offsets is None else offsets.get(version)
            block = np.ascontiguousarray(block, dtype=np.float32)
            for i, (keys, scores) in enumerate(self._nearest(version, block, k, among, exact)):
                shifted = scores if added is None else scores + added[i]
                hits[i].append(Hits(keys, shifted, np.full(len(keys), version, dtype=np.int64)))
        return [merge_hits(parts, k) for parts in hits]

    def as_ids(self, ids: pa.Array | Sequence[int | str]) -> pa.Array:
        """Return ids as this store's type. Raises: DataError: one is null, or of another type."""
        wanted = self.id_type
        if isinstance(ids, str | bytes):
            raise DataError(f"ids is the text {ids[:40]!r}; give a list, such as [{ids[:40]!r}].")
        try:
            array = ids if isinstance(ids, pa.Array) else pa.array(ids)
            if array.type == wanted and not array.null_count:
                return array
            if pa.types.is_null(array.type) and not len(array):
                array = array.cast(wanted)
            fits = is_text if pa.types.is_string(wanted) else pa.types.is_integer
            if not fits(array.type):
                raise DataError(f"Ids are {array.type}; those of {self.address} are {wanted}.")
            converted = array.cast(wanted)
        except (pa.ArrowException, OverflowError, TypeError, UnicodeError) as error:
            raise DataError(
                f"Ids must all be {wanted}, as those of {self.address} are: {error}."
            ) from None
        if converted.null_count:
            raise DataError("An id is null; every row needs one.")
        return converted

    def _verify(self, rows: Rows, checks: Checks) -> None:
        wrong = np.flatnonzero(row_checks(rows) != checks)
        if len(wrong):
            raise IntegrityError(
                f"The row of id {rows.ids[wrong[0]]} in {self.address} is not what was written "
                "(its checksum differs); write it again, or restore the store."
            )

    @property
    def place(self) -> str:
        """The address independent of the current folder: equal for the same store, and only
        then."""
        return self.address

    def __reduce__(self) -> tuple[Any, ...]:
        kind: Any = type(self)
        return kind.open, (self.place,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Store(ReadableStore):
    """Embeddings of one side, searched by inner product within the space of each version. Ids are
    unique: a row written again replaces the one before, whatever its version.

    `upsert`, `add_space`, `take_side` and `delete` are durable when they return. A store that was
    killed meanwhile opens again with every row as it was before or after, and may hold an id in
    two spaces until the id is written again or `remove_superseded` is called: both rows are whole,
    `count` counts both, and searches, `fetch` and `scan` return the later version's alone.

    Raises, anywhere: StoreError: it cannot be reached, written or read. IntegrityError: a row is
        not what was written.
    """

    # A kind of store implements these, and those of ReadableStore.

    @abstractmethod
    def build_index(self) -> list[int]:
        """Build the store's native index, if it has one, for its larger spaces, and return the
        versions whose rows are in one now. Search is then faster and may miss some of the best;
        rows may be written before and after."""

    @abstractmethod
    def _add_space(self, space: Space) -> None:
        """Add a space, durably, unless another process has added it."""

    @abstractmethod
    def _set_side(self, side: str) -> None:
        """Set the side, durably, unless it is set already."""

    @abstractmethod
    def _write(self, rows: Rows, checks: Checks) -> None:
        """Write rows into their space and remove their ids from every other one."""

    @abstractmethod
    def _delete(self, ids: pa.Array) -> None:
        """Remove the rows of ids; some may not be there."""

    # All kinds inherit these.

    def take_side(self, side: str) -> None:
        """Make this the store of a side, for good.

        Raises: IntegrityError: it is the store of another one.
        """
        if self.side is None:
            self._set_side(side)
        if self.side != side:
            raise other_side(self, side)

    def add_space(self, space: Space) -> None:
        """Add the space of a version, unless it is there.

        Raises: IntegrityError: the version is there with another fingerprint or dim.
        """
        there = self.spaces().get(space.version)
        if there is None:
            self._add_space(space)
            # Another process may have been quicker, with another one.
            there = self.spaces()[space.version]
        if there != space:
            raise IntegrityError(
                f"{self.address} holds version {space.version} with fingerprint "
                f"{there.fingerprint} and dim {there.dim}, not {space.fingerprint} and "
                f"{space.dim}: it belongs to another lineage; use another store."
            )

    def upsert(self, rows: Rows) -> None:
        """Write rows, each in place of the one with its id.

        Raises: DataError: an id twice, or none, or of another type; a value that is not finite;
            a version without a space. ShapeError: another dim.
        """
        rows = self.checked(rows)
        if len(rows):
            self._write(rows, row_checks(rows))

    def checked(self, rows: Rows) -> Rows:
        """Return rows with ids of this store's type, if they may be written. Raises: as
        `upsert`."""
        space = self.spaces().get(rows.version)
        if space is None:
            raise DataError(
                f"{self.address} has no space for version {rows.version}; it has "
                f"{', '.join(map(str, self.spaces())) or 'none'}."
            )
        if rows.vectors.shape[1] != space.dim:
            raise ShapeError(
                f"Vectors have dim {rows.vectors.shape[1]}; those of version {rows.version} in "
                f"{self.address} have {space.dim}."
            )
        rows = Rows(rows.version, self.as_ids(rows.ids), rows.vectors)
        if len(rows) > len(pc.unique(rows.ids)):
            raise DataError("An id is twice in one upsert; give each once.")
        bad = np.flatnonzero(~np.isfinite(rows.vectors).all(axis=1))
        if len(bad):
            raise DataError(f"The vector of id {rows.ids[bad[0]]} is not finite.")
        return rows

    def load(self, space: Space, blocks: Iterable[Rows]) -> int:
        """Write all rows of a version, block after block, and return their number.

        Killed in between, some are written; loading again writes the same rows.
        """
        self.add_space(space)
        total = 0
        for rows in blocks:
            self.upsert(rows)
            total += len(rows)
        return total

    def delete(self, ids: pa.Array | Sequence[int | str]) -> None:
        """Remove rows; an id that is not there is no error."""
        self._delete(self.as_ids(ids))

    def remove_superseded(self) -> int:
        """Remove rows that a killed writer left although a later version has their id, and return
        their number: 0 where a write is one transaction, which leaves none."""
        return 0


def other_side(store: ReadableStore, side: str) -> IntegrityError:
    """Return the error for a store that is used for another side than its own."""
    return IntegrityError(
        f"{store.address} is the store of side {store.side!r} and cannot hold side {side!r}, as a "
        "store holds one side; use another store."
    )


def checked_name(name: str) -> str:
    """Return the name of a store in a database. Raises: DataError: no store may have it."""
    if not NAME.fullmatch(name):
        raise DataError(
            f"{name!r} cannot be the name of a store; give one of at most 40 ASCII letters, "
            "digits, _ and -, and no - in front."
        )
    return name


def no_store(shown: str) -> DataError:
    return DataError(f"There is no store at {shown}; create it first.")


@contextmanager
def errors_as_store_errors(
    shown: str,
    todo: str = "see that it may be read and written, with its folder, and restore it from a copy "
    "or fill another",
) -> Iterator[None]:
    """Raise every error of a client as a StoreError that ends with what to do."""
    try:
        yield
    except (EvergramError, GeneratorExit):
        raise
    except BaseException as error:
        # A damaged file makes LanceDB panic, which is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        sentence = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        rest = reason_and_remedy(error) if isinstance(error, OSError) else f"{sentence}; {todo}"
        raise StoreError(f"{shown} cannot be reached, read or written: {rest}.") from error


def was_closed(shown: str) -> StoreError:
    return StoreError(f"{shown} was closed; open it again.")


def not_ours(what: str, shown: str) -> StoreError:
    """Return the error about what a store did not write, such as "table emb-v1"."""
    return StoreError(
        f"There is a {what} that {shown} did not write; give another name after #, or rename it."
    )
