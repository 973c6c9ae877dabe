"""What every store of embeddings can do: rows of one side, each at the version it was made with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, IntegrityError, ShapeError
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


class Store(StoreView):
    """Embeddings of one side. Ids are unique: a row written again replaces the one before, of
    whatever version that was. Search is by inner product, within the space of each version.

    What `upsert`, `add_space`, `take_side` and `delete` did is durable when they return. A store
    that was killed in between opens again with every row as it was before or after, and may then
    for a moment hold an id in two spaces; either row is a true one, and the later version's is
    given.

    Raises, anywhere: StoreError: it cannot be reached, written or read. IntegrityError: a row is
        not what was written.
    """

    kind: ClassVar[str]

    # What a kind of store implements.

    @property
    def place(self) -> str:
        """The address as it is from whatever folder: one store has one, two have two."""
        return self.address

    @abstractmethod
    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        """Return what `work` makes of the store as it is at one moment.

        Rows that others move from version to version meanwhile are in the one or in the other, and
        never in none: what `filled` named can be searched.

        Args:
            work: reads through the view that it is given, and does nothing else: it may be called
                more than once, each time with a view of its own.
        """

    @abstractmethod
    def build_index(self) -> None:
        """Make search in the larger spaces fast by the store's native index, where there is one;
        it may then miss some of the best. Rows may be written before and after."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _add_space(self, space: Space) -> None: ...

    @abstractmethod
    def _set_side(self, side: str) -> None:
        """Write down the side, durably, unless one is written down already."""

    @abstractmethod
    def _write(self, rows: Rows, checks: Checks) -> None:
        """Put rows into their space, and take their ids out of every other one."""

    @abstractmethod
    def _delete(self, ids: pa.Array) -> None: ...

    @abstractmethod
    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]: ...

    # What all have.

    def take_side(self, side: str) -> None:
        """Be the store of a side from now on, for good; nothing where it is already.

        Raises: IntegrityError: it is the store of another one.
        """
        if self.side is None:
            self._set_side(side)
        if self.side != side:
            raise other_side(self, side)

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

    def scan(self, version: int | None = None, size: int = 65_536) -> Iterator[Rows]:
        """All rows (of a version), in blocks of at most `size`, in any order."""
        for number in self.spaces() if version is None else [version]:
            for rows, checks in self._scan(number, size):
                self._verify(rows, checks)
                yield rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def other_side(store: StoreView, side: str) -> IntegrityError:
    """What to say of a store that is taken for one of another side."""
    return IntegrityError(
        f"{store.address} is the store of side {store.side!r}; side {side!r} was given for it. A "
        "store holds one side: use another store."
    )
