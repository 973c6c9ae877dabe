"""The interface of a store of embeddings: rows of one side, each at the version that made it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, IntegrityError, ShapeError
from evergram.reopening import Reopened
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.rows import (
    ID_TYPES,
    Checks,
    Floats,
    Hits,
    Rows,
    Space,
    merge_hits,
    row_checks,
)
from evergram.stores.store_view import StoreView

__all__ = [
    "ID_TYPES",
    "Checks",
    "Floats",
    "Hits",
    "Rows",
    "Space",
    "Store",
    "StoreView",
    "merge_hits",
    "row_checks",
]

T = TypeVar("T")


class Store(Reopened, StoreView):
    """Embeddings of one side, searched by inner product within the space of each version. Ids are
    unique: a row written again replaces the one before, whatever its version.

    `upsert`, `add_space`, `take_side` and `delete` are durable when they return. A store that was
    killed meanwhile opens again with every row as it was before or after, and may hold an id in
    two spaces until the id is written again or `remove_superseded` is called: both rows are whole,
    `count` counts both, and searches, `fetch` and `scan` return the later version's alone.

    Raises, anywhere: StoreError: it cannot be reached, written or read. IntegrityError: a row is
        not what was written.
    """

    kind: ClassVar[str]

    # Of versions with rows for which the last `build_index` built no index: why, where it is known.
    unindexed: Mapping[int, str] = MappingProxyType({})

    # A kind of store implements these, those of StoreView, and a classmethod `open`.

    @property
    def place(self) -> str:
        """The address independent of the current folder: equal for the same store, and only
        then."""
        return self.address

    def __reduce__(self) -> tuple[Any, ...]:
        kind: Any = type(self)
        return kind.open, (self.place,)

    @abstractmethod
    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        """Return what `work` returns for a view of the store at one moment.

        A row that others move between versions meanwhile is in one of them in the view, never in
        none.

        Args:
            work: reads through the view and does nothing else, as it may be called more than once,
                each time with another view.
        """

    @abstractmethod
    def build_index(self, codes: IndexCodes = FLOAT32) -> list[int]:
        """Build the store's native index, if it has one, for its larger spaces. Search is then
        faster and may miss some of the best; rows may be written before and after.

        Args:
            codes: of fewer bytes, in place of whole vectors; scores stay those of the vectors.
        Returns: the versions whose rows are in such an index now.
        Raises: DataError: this kind of store has no such index.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections."""

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

    @abstractmethod
    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        """Yield all rows of a version, in blocks of at most `size`, in any order."""

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
        elif there != space:
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

    def scan(self, version: int | None = None, size: int = 65_536) -> Iterator[Rows]:
        """Yield all rows (of a version), in blocks of at most `size`, in any order."""
        for number in self.spaces() if version is None else [version]:
            for rows, checks in self._scan(number, size):
                self._verify(rows, checks)
                yield rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def too_few(count: int, least: int) -> str:
    """Return why a version has no index, for `Store.unindexed`."""
    return f"{count} rows are too few: an index is built of {least} or more"


def other_side(store: StoreView, side: str) -> IntegrityError:
    """Return the error for a store that is used for another side than its own."""
    return IntegrityError(
        f"{store.address} is the store of side {store.side!r} and cannot hold side {side!r}, as a "
        "store holds one side; use another store."
    )
