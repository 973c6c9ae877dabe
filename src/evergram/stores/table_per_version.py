"""Stores that keep the space of each version in a table or a collection of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import FormatError, StoreError
from evergram.stores.rows import ID_TYPES, Checks, Floats, Rows, Space
from evergram.stores.store import Store

FORMAT = 1
# A search that found rows of which later versions are held looks at so many times as many.
WIDER = 4


@dataclass(frozen=True)
class StoreRecord:
    """What a store says of itself.

    Args:
        id_type: "int64" or "string".
        spaces: by version, ascending.
        side: of the rows; None until it is set.
    """

    id_type: str
    spaces: dict[int, Space]
    side: str | None = None

    def as_json(self) -> dict[str, Any]:
        spaces = [vars(space) for _, space in sorted(self.spaces.items())]
        return {**vars(self), "format_version": FORMAT, "spaces": spaces}


def parse_record(read: Callable[[], Mapping[str, Any]], shown: str) -> StoreRecord:
    """Return a store's record.

    Args:
        read: returns what `StoreRecord.as_json` returned, or raises what reading JSON raises.
    Raises: FormatError: it is of a later format. StoreError: it is damaged, or no record.
    """
    try:
        raw = read()
        if raw["format_version"] != FORMAT:
            raise FormatError(
                f"{shown} has format {raw['format_version']}; this Evergram reads {FORMAT}: use a "
                "later Evergram."
            )
        spaces = {one["version"]: Space(**one) for one in raw["spaces"]}
        if raw["id_type"] not in ID_TYPES:
            raise ValueError(f"id_type is {raw['id_type']!r}")
        return StoreRecord(raw["id_type"], dict(sorted(spaces.items())), raw.get("side"))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        raise StoreError(
            f"{shown} cannot be read: it is something else, or its record is damaged "
            f"({type(error).__name__}: {error}); give another name after #, or restore it from a "
            "copy."
        ) from error


class TablePerVersionStore(Store):
    """A store without a transaction over its tables, which keeps an id in one space by the order of
    its steps: a row is written first and removed from the other spaces after, and readers look a
    second time for ids that they did not find. Killed in between, it has the id in two spaces and
    loses none; searches and `scan` leave out the row of the earlier version, which the next write
    of the id removes, or `remove_superseded`."""

    _id_type: pa.DataType

    @abstractmethod
    def _record(self) -> StoreRecord:
        """Return the record as it is now, or, of a view of one moment, as it was then."""

    @property
    def id_type(self) -> pa.DataType:
        return self._id_type

    @property
    def side(self) -> str | None:
        return self._record().side

    def spaces(self) -> dict[int, Space]:
        return self._record().spaces

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

    @abstractmethod
    def _held(self, version: int, ids: pa.Array) -> pa.Array:
        """Return those of the ids that are in a space, in any order."""

    @abstractmethod
    def _best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, *, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        """As `_nearest`, in one table, whatever the others hold.

        Args:
            exact: whether to compare all rows where the index is a graph.
        """

    def scan(self, version: int | None = None, size: int = 65_536) -> Iterator[Rows]:
        for rows in super().scan(version, size):
            superseded = self._superseded(rows.version, rows.ids)
            if not len(superseded):
                yield rows
                continue
            living = pc.invert(pc.is_in(rows.ids, value_set=superseded))
            mask = living.to_numpy(zero_copy_only=False)
            if mask.any():
                yield Rows(rows.version, rows.ids.filter(living), rows.vectors[mask])

    def remove_superseded(self) -> int:
        removed = 0
        # The last space has no later one.
        for version in list(self.spaces())[:-1]:
            for rows, _ in self._scan(version, 65_536):
                superseded = self._superseded(version, rows.ids)
                if not len(superseded):
                    continue
                with self._writing():
                    # Another writer may have moved some of them since.
                    superseded = self._superseded(version, superseded)
                    self._remove(version, superseded)
                removed += len(superseded)
        return removed

    def _superseded(self, version: int, ids: pa.Array) -> pa.Array:
        """Return those of the ids of a space that a later one has too: a writer put them there
        and has not yet removed them here, or was killed before."""
        later = [number for number in self.spaces() if number > version]
        if not len(ids) or not later:
            return ids.slice(0, 0)
        there = pa.concat_arrays([self._held(number, ids) for number in later])
        return there.unique()

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        return self._living_best(version, queries, k, ids, exact=False)

    def _nearest_without_graph(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        return self._living_best(version, queries, k, ids, exact=True)

    def _living_best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, *, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        width = k
        while True:
            best = self._best(version, queries, width, ids, exact=exact)
            hits = pa.concat_arrays([pa.array([], self.id_type), *(keys for keys, _ in best)])
            superseded = self._superseded(version, hits.unique())
            if not len(superseded):
                return [(keys.slice(0, k), scores[:k]) for keys, scores in best]
            living = [_without(keys, scores, superseded) for keys, scores in best]
            # A table that gave fewer than it was asked for has no more.
            if all(
                len(kept) >= k or len(keys) < width
                for (kept, _), (keys, _) in zip(living, best, strict=True)
            ):
                return [(keys.slice(0, k), scores[:k]) for keys, scores in living]
            width *= WIDER

    def _write(self, rows: Rows, checks: Checks) -> None:
        with self._writing():
            self._put(rows, checks)
            for version in self.spaces():
                if version != rows.version:
                    self._remove(version, rows.ids)

    def _delete(self, ids: pa.Array) -> None:
        with self._writing():
            # Ascending: if it is killed in between, an earlier row of an id is not left alone.
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


def _without(keys: pa.Array, scores: Floats, ids: pa.Array) -> tuple[pa.Array, Floats]:
    """Return hits without those of some ids."""
    kept = pc.invert(pc.is_in(keys, value_set=ids))
    return keys.filter(kept), scores[kept.to_numpy(zero_copy_only=False)]
