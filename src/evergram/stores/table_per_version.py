"""Stores that keep the space of each version in a table or a collection of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pyarrow as pa
import pyarrow.compute as pc

from evergram.stores.store import Checks, Rows, Store


class TablePerVersionStore(Store):
    """A store without a transaction over its tables, which keeps an id in one space by the order of
    its steps: a row is written first and removed from the other spaces after, and readers look a
    second time for ids that they did not find. Killed in between, it has the id in two spaces and
    loses none; the next write of the id removes the other."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[object]:
        """Hold the write lock. Without it two writers that move an id to different spaces could
        each remove the row that the other has written."""

    @abstractmethod
    def _put(self, rows: Rows, checks: Checks) -> None:
        """Write rows into their space."""

    @abstractmethod
    def _remove(self, version: int, ids: pa.Array) -> None:
        """Remove ids from a space; many are not in it."""

    @abstractmethod
    def _get(self, version: int, ids: pa.Array) -> Iterator[tuple[Rows, Checks]]:
        """Yield the rows of the ids that are in a space, in parts that are not empty."""

    def _write(self, rows: Rows, checks: Checks) -> None:
        with self._writing():
            self._put(rows, checks)
            for version in self.spaces():
                if version != rows.version:
                    self._remove(version, rows.ids)

    def _delete(self, ids: pa.Array) -> None:
        with self._writing():
            for version in self.spaces():
                self._remove(version, ids)

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        spaces = list(self.spaces())
        parts: list[tuple[Rows, Checks]] = []
        missing = ids
        # A row that moves to a later version while we look is met in either; one that moves back
        # may slip from a space not yet read into one that was, and is met the second time.
        for _ in range(2 if len(spaces) > 1 else 1):
            fresh = [part for version in spaces for part in self._get(version, missing)]
            parts += fresh
            if fresh:
                there = pa.concat_arrays([rows.ids for rows, _ in fresh])
                missing = missing.filter(pc.invert(pc.is_in(missing, value_set=there)))
            if not len(missing):
                break
        return parts
