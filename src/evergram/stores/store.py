"""The interface of a store of embeddings: rows of one side, each at the version that made it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
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
from evergram.stores.rows import (
    Checks,
    Floats,
    Hits,
    Rows,
    Space,
    check_k,
    joined_ids,
    merge_hits,
    row_checks,
)

T = TypeVar("T")
# Every database and file system takes such a name as it is.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}")


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
