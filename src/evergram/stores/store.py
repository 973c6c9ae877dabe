"""What every store of embeddings can do: rows of one side, each at the version it was made with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, IntegrityError, ShapeError

Floats = npt.NDArray[np.float32]
Checks = npt.NDArray[np.uint32]

# What ids may be; one store holds one of them.
ID_TYPES = {"int64": pa.int64(), "string": pa.string()}


@dataclass(frozen=True)
class Space:
    """Where the vectors of one version live.

    Args:
        version: its number in the lineage.
        dim: D of its vectors as they are stored.
        fingerprint: of the version; vectors of another are never put beside these.
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
                f"{len(self.ids)} ids and vectors of shape {list(self.vectors.shape)} were given; "
                "vectors must be [n, D], one an id."
            )
        if self.vectors.dtype != np.float32:
            raise DataError(f"Vectors are {self.vectors.dtype}; a store holds float32.")

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Hits:
    """What one query found, best first.

    Args:
        ids: [n].
        scores: float32 [n], descending.
        versions: int64 [n], what each row was embedded with.
    """

    ids: pa.Array
    scores: Floats
    versions: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, k: int) -> Hits:
        return Hits(self.ids.slice(0, k), self.scores[:k], self.versions[:k])


def row_checks(rows: Rows) -> Checks:
    """A checksum of id, version and vector of each row [n]: it is stored with the row and compared
    when the row is fetched, so that no damaged vector, and none under another id, is given out.

    Σ_i m_i w_i modulo 2³², with w the 32-bit words of a row and m odd: whatever happens to one word
    changes it, and what happens to several goes unseen once in 2³². (A CRC would do the same, row
    by row; this is all rows at once, which a request for a hundred rows feels.)
    """
    vectors = np.ascontiguousarray(rows.vectors, dtype="<f4").view("<u4")
    odd = _multipliers(vectors.shape[1] + 3)
    if pa.types.is_integer(rows.ids.type):
        keys = rows.ids.to_numpy().astype("<i8", copy=False).view("<u4").reshape(-1, 2)
    else:
        texts = (crc32(key.encode()) for key in rows.ids.to_pylist())
        keys = np.zeros((len(rows), 2), dtype=np.uint32)
        keys[:, 0] = np.fromiter(texts, dtype=np.uint32, count=len(rows))
    found: Checks = np.einsum("nd,d->n", vectors, odd[3:], dtype=np.uint32)
    found += keys @ odd[1:3]
    # Beginning at one: a row of zeros under id 0 has no check of zero.
    found += np.uint32((1 + int(odd[0]) * rows.version) & 0xFFFFFFFF)
    return found


@lru_cache
def _multipliers(count: int) -> Checks:
    """Odd numbers without a pattern: the finaliser of MurmurHash3 on 1, 2, …"""
    found = np.arange(1, count + 1, dtype=np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        found ^= found >> np.uint32(shift)
        found *= np.uint32(factor)
    return found | np.uint32(1)


class Store(ABC):
    """Embeddings of one side. Ids are unique: a row written again replaces the one before, of
    whatever version that was. Search is by inner product, within the space of each version.

    What `upsert`, `add_space` and `delete` did is durable when they return. A store that was killed
    in between opens again with every row as it was before or after, and may then for a moment
    hold an id in two spaces; either row is a true one, and the later version's is given.

    Raises, anywhere: StoreError: it cannot be reached, written or read. IntegrityError: a row is
        not what was written.
    """

    kind: ClassVar[str]

    # What a kind of store implements.

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it is, without a password; `open_store` opens it."""

    @property
    def place(self) -> str:
        """The address as it is from whatever folder: one store has one, two have two."""
        return self.address

    @property
    @abstractmethod
    def id_type(self) -> pa.DataType:
        """int64 or string."""

    @abstractmethod
    def spaces(self) -> dict[int, Space]:
        """By version, ascending; also of versions without rows."""

    @abstractmethod
    def count(self) -> dict[int, int]:
        """Rows of each version that has any."""

    @abstractmethod
    def build_index(self) -> None:
        """Make search in the larger spaces fast by the store's native index, where there is one;
        it may then miss some of the best. Rows may be written before and after."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _add_space(self, space: Space) -> None: ...

    @abstractmethod
    def _write(self, rows: Rows, checks: Checks) -> None:
        """Put rows into their space, and take their ids out of every other one."""

    @abstractmethod
    def _delete(self, ids: pa.Array) -> None: ...

    @abstractmethod
    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        """What there is of the ids, in any order, grouped by version."""

    @abstractmethod
    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]: ...

    @abstractmethod
    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        """For each query [Q, D] the ids [≤k] of a space with the largest inner products, best
        first; among `ids` alone where they are given."""

    # What all have.

    def add_space(self, space: Space) -> None:
        """Make room for the vectors of a version; nothing where it is there.

        Raises: IntegrityError: the version is there with another fingerprint or dim.
        """
        there = self.spaces().get(space.version)
        if there is None:
            self._add_space(space)
        elif there != space:
            raise IntegrityError(
                f"{self.address} holds version {space.version} with fingerprint "
                f"{there.fingerprint} and dim {there.dim}; {space.fingerprint} and {space.dim} "
                "were given. It belongs to another lineage; use another store."
            )

    def filled(self) -> dict[int, Space]:
        """The spaces that have a row, by version: every search asks, and not how many there are."""
        held = self.count()
        return {version: space for version, space in self.spaces().items() if version in held}

    def upsert(self, rows: Rows) -> None:
        """Write rows, each in place of the one with its id.

        Raises: DataError: an id twice, or none, or of another type; a value that is not finite;
            a version without a space. ShapeError: another dim.
        """
        rows = self.checked(rows)
        if len(rows):
            self._write(rows, row_checks(rows))

    def checked(self, rows: Rows) -> Rows:
        """Rows as they may be written. Raises: as `upsert`."""
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
            raise DataError("An id is given twice in one upsert; give each once.")
        bad = np.flatnonzero(~np.isfinite(rows.vectors).all(axis=1))
        if len(bad):
            raise DataError(f"The vector of id {rows.ids[bad[0]]} is not finite.")
        return rows

    def load(self, space: Space, blocks: Iterable[Rows]) -> int:
        """Write all rows of a version, block after block. Returns: how many.

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

    def fetch(self, ids: pa.Array | Sequence[int | str]) -> list[Rows]:
        """The rows of the ids that are there, grouped by version, in any order."""
        asked = self.as_ids(ids)
        if len(set(asked.to_pylist())) < len(asked):
            asked = pc.unique(asked)
        found = self._read(asked)
        for rows, checks in found:
            self._verify(rows, checks)
        parts = [rows for rows, _ in found]
        if len(parts) == 1:
            return parts
        keys = _joined([rows.ids for rows in parts], self.id_type)
        return parts if len(pc.unique(keys)) == len(keys) else _latest(parts, self.id_type)

    def scan(self, version: int | None = None, size: int = 65_536) -> Iterator[Rows]:
        """All rows (of a version), in blocks of at most `size`, in any order."""
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
    ) -> list[Hits]:
        """The k rows with the largest ⟨q_v, z⟩ + c_v, v being the version of the row.

        Args:
            queries: for each version to search in, float32 [Q, D_v]; every Q is the same.
            k: at least 1; fewer are found where there are fewer rows.
            offsets: for a version, c_v [Q]; 0 where it is left out.
            ids: search among these alone.
        Returns: one a query.
        """
        if k < 1:
            raise DataError(f"k is {k}; it must be at least 1.")
        spaces = self.spaces()
        sizes = {len(q) for q in queries.values()}
        for version, given in queries.items():
            if given.ndim != 2 or version not in spaces or given.shape[1] != spaces[version].dim:
                has = {v: s.dim for v, s in spaces.items()}
                raise ShapeError(
                    f"Queries for version {version} are {list(given.shape)}; they must be [Q, D] "
                    f"with D of that version, one of {has} here."
                )
        if len(sizes) > 1:
            raise ShapeError(f"There are {sorted(sizes)} queries for different versions.")
        among = None if ids is None else pc.unique(self.as_ids(ids))
        found: list[list[Hits]] = [[] for _ in range(max(sizes, default=0))]
        for version, given in queries.items():
            added = None if offsets is None else offsets.get(version)
            given = np.ascontiguousarray(given, dtype=np.float32)
            for i, (keys, scores) in enumerate(self._nearest(version, given, k, among)):
                shifted = scores if added is None else scores + added[i]
                found[i].append(Hits(keys, shifted, np.full(len(keys), version, dtype=np.int64)))
        return [merge_hits(parts, k) for parts in found]

    def as_ids(self, ids: pa.Array | Sequence[int | str]) -> pa.Array:
        """Ids as this store's type. Raises: DataError: one cannot be, or is null."""
        wanted = self.id_type
        try:
            given = ids if isinstance(ids, pa.Array) else pa.array(ids)
            if given.type == wanted and not given.null_count:
                return given
            if pa.types.is_null(given.type) and not len(given):
                given = given.cast(wanted)
            text = pa.types.is_string(given.type) or pa.types.is_large_string(given.type)
            if text != pa.types.is_string(wanted):
                raise DataError(f"Ids are {given.type}; those of {self.address} are {wanted}.")
            found = given.cast(wanted)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise DataError(
                f"Ids must all be {wanted}, as those of {self.address} are: {error}."
            ) from None
        if found.null_count:
            raise DataError("An id is null; every row needs one.")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _verify(self, rows: Rows, checks: Checks) -> None:
        differ = row_checks(rows) != checks
        if differ.any():
            wrong = np.flatnonzero(differ)
            raise IntegrityError(
                f"The row of id {rows.ids[wrong[0]]} in {self.address} is not what was written "
                "(its checksum differs); write it again, or restore the store."
            )


def _joined(parts: list[pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays(parts) if parts else pa.array([], kind)


def _latest(parts: list[Rows], kind: pa.DataType) -> list[Rows]:
    """Each id once, at the latest version that has it."""
    seen = pa.array([], kind)
    kept = []
    for rows in sorted(parts, key=lambda r: -r.version):
        fresh = pc.invert(pc.is_in(rows.ids, value_set=seen))
        mask = fresh.to_numpy(zero_copy_only=False)
        seen = pa.concat_arrays([seen, rows.ids])
        if mask.any():
            kept.append(Rows(rows.version, rows.ids.filter(fresh), rows.vectors[mask]))
    return kept


def merge_hits(parts: Sequence[Hits], k: int) -> Hits:
    """The best k of what several spaces gave, each id once: at the latest version that has it."""
    parts = [part for part in parts if len(part)] or list(parts[:1])
    if len(parts) == 1:
        return parts[0].first(k)
    parts = sorted(parts, key=lambda part: -int(part.versions[0]))
    ids = pa.concat_arrays([part.ids for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    versions = np.concatenate([part.versions for part in parts])
    codes = ids.dictionary_encode().indices.to_numpy()
    first = np.unique(codes, return_index=True)[1]
    best = first[np.argsort(-scores[first], kind="stable")][:k]
    return Hits(ids.take(pa.array(best)), scores[best], versions[best])
