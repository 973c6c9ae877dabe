"""Stores that keep the space of each version in a table or a collection of its own."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, FormatError, StoreError
from evergram.stores.rows import (
    ID_TYPES,
    Checks,
    Floats,
    Rows,
    Space,
    best_first,
    joined_ids,
    products,
)
from evergram.stores.store import Store, checked_name, no_store, other_id_type

FORMAT = 1
# How many times as many rows are searched when later versions hold some of those that were found.
WIDER = 4


@dataclass(frozen=True)
class StoreRecord:
    """What a store says of itself; its spaces are in the order of their versions."""

    id_type: str
    spaces: dict[int, Space]
    side: str | None = None

    def as_json(self) -> dict[str, Any]:
        head = {"format_version": FORMAT, "id_type": self.id_type, "side": self.side}
        return head | {f"v{version}": asdict(space) for version, space in self.spaces.items()}


def parse_record(read: Callable[[], Mapping[str, Any]], shown: str) -> StoreRecord:
    """Return a store's record, given a function that reads it, or raises as reading JSON does.
    Raises: FormatError: it is of a later format. StoreError: it is damaged, or no record."""
    try:
        raw = read()
        if raw["format_version"] != FORMAT:
            raise FormatError(
                f"{shown} has format {raw['format_version']}; this Evergram reads {FORMAT}: use a "
                "later Evergram."
            )
        spaces = [Space(**raw[key]) for key in raw if re.fullmatch(r"v\d+", key)]
        if raw["id_type"] not in ID_TYPES:
            raise ValueError(f"id_type is {raw['id_type']!r}")
        by_version = {space.version: space for space in spaces}
        return StoreRecord(raw["id_type"], dict(sorted(by_version.items())), raw.get("side"))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        raise StoreError(
            f"{shown} cannot be read: it is something else, or its record is damaged "
            f"({type(error).__name__}: {error}); give another name after #, or restore it from a "
            "copy."
        ) from error


class TablePerVersionStore(Store):
    """A store that keeps an id in one space: by a transaction, or, where there is none over several
    tables (`two_steps`), by the order of its steps: a row is written first and removed from the
    other spaces after, and readers look a second time for ids that they did not find. Killed in
    between, it has the id in two spaces and loses none; searches and `scan` leave out the row of
    the earlier version, which the next write of the id removes, or `remove_superseded`."""

    two_steps: ClassVar[bool] = True
    # How an address is written.
    form: ClassVar[str]

    _id_type: pa.DataType

    def __init__(self, place: str, name: str, create: str | None) -> None:
        self._place, self._name = place, name
        self._connect(create)
        try:
            self._begin(create)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`."""
        place, _, name = address.removeprefix(f"{cls.kind}:").rpartition("#")
        if not place:
            raise DataError(f"{address!r} is not an address of a store; give {cls.form}.")
        cls._check_place(place)
        return cls(place, checked_name(name), create)

    @property
    def address(self) -> str:
        return f"{self.kind}:{self._place}#{self._name}"

    @property
    def place(self) -> str:
        return f"{self.kind}:{Path(self._place).resolve()}#{self._name}"

    # A kind of store implements these, and `_scan`, `read_consistently`, `build_index` and `close`.

    @classmethod
    def _check_place(cls, place: str) -> None:
        """Raises: DataError: what stands before the # is wrong."""

    @abstractmethod
    def _connect(self, create: str | None) -> None:
        """Open the database. Raises: DataError: it is not there, unless it is to be created."""

    @abstractmethod
    def _found(self) -> StoreRecord | None:
        """Return the record as it is now, or, of a view of one moment, as it was then."""

    @abstractmethod
    def _save(self, record: StoreRecord) -> None:
        """Write the record, durably."""

    @abstractmethod
    def _refuse_others(self) -> None:
        """Raises: StoreError: a new store would have tables that are there already."""

    @abstractmethod
    def _make_table(self, space: Space) -> None:
        """Make the table of a space, in place of an empty one that a killed writer left. Raises:
        StoreError: another program's."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Self]:
        """Hold the write lock, without which two writers that move an id to different spaces could
        each remove the row that the other has written, and return the store to write to."""

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
    def _count(self, version: int) -> int:
        """Return the number of rows in a space."""

    @abstractmethod
    def _best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        """As `_nearest`, in one table, whatever the others hold."""

    # All kinds inherit these.

    def _begin(self, create: str | None) -> None:
        """Find the store, or make it for ids of a type. Raises: as `open_store`."""
        record = self._found()
        if record is None:
            if create is None:
                raise no_store(self.address)
            self._refuse_others()
            with self._writing() as store:
                if store._found() is None:
                    store._save(StoreRecord(create, {}))
            record = self._record()
        if create not in (None, record.id_type):
            raise other_id_type(self.address, record.id_type, str(create))
        self._id_type = ID_TYPES[record.id_type]

    def _record(self) -> StoreRecord:
        record = self._found()
        if record is None:
            raise no_store(self.address)
        return record

    @property
    def id_type(self) -> pa.DataType:
        return self._id_type

    @property
    def side(self) -> str | None:
        return self._record().side

    def spaces(self) -> dict[int, Space]:
        return self._record().spaces

    def count(self) -> dict[int, int]:
        counts = {version: self._count(version) for version in self.spaces()}
        return {version: count for version, count in counts.items() if count}

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
        for version in list(self.spaces())[:-1] if self.two_steps else []:
            for rows, _ in self._scan(version, 65_536):
                superseded = self._superseded(version, rows.ids)
                if not len(superseded):
                    continue
                with self._writing() as store:
                    # Another writer may have moved some of them since.
                    superseded = store._superseded(version, superseded)
                    store._remove(version, superseded)
                removed += len(superseded)
        return removed

    def _superseded(self, version: int, ids: pa.Array) -> pa.Array:
        """Return those of the ids of a space that a later one has too: a writer put them there
        and has not yet removed them here, or was killed before."""
        later = [number for number in self.spaces() if number > version] if self.two_steps else []
        parts = [rows.ids for number in later if len(ids) for rows, _ in self._get(number, ids)]
        return joined_ids(parts, self.id_type).unique()

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        width = k
        while True:
            best = self._best(version, queries, width, ids, exact)
            hits = joined_ids([keys for keys, _ in best], self.id_type)
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

    def _best_among(
        self, version: int, queries: Floats, k: int, ids: pa.Array
    ) -> list[tuple[pa.Array, Floats]]:
        """As `_best`, by reading the rows of the ids: that is exact and needs no index."""
        found = list(self._get(version, ids))
        for rows, checks in found:
            self._verify(rows, checks)
        keys = joined_ids([rows.ids for rows, _ in found], self.id_type)
        empty = np.zeros((0, queries.shape[1]), dtype=np.float32)
        vectors = np.concatenate([empty, *(rows.vectors for rows, _ in found)])
        return [best_first(keys, products(query[None], vectors)[0], k) for query in queries]

    def _add_space(self, space: Space) -> None:
        with self._writing() as store:
            record = store._record()
            if space.version not in record.spaces:
                store._make_table(space)
                spaces = sorted({**record.spaces, space.version: space}.items())
                store._save(replace(record, spaces=dict(spaces)))

    def _set_side(self, side: str) -> None:
        with self._writing() as store:
            record = store._record()
            if record.side is None:
                store._save(replace(record, side=side))

    def _write(self, rows: Rows, checks: Checks) -> None:
        with self._writing() as store:
            store._put(rows, checks)
            for version in store.spaces():
                if version != rows.version:
                    store._remove(version, rows.ids)

    def _delete(self, ids: pa.Array) -> None:
        with self._writing() as store:
            # Ascending: if it is killed in between, an earlier row of an id is not left alone.
            for version in store.spaces():
                store._remove(version, ids)

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        spaces = list(self.spaces())
        parts: list[tuple[Rows, Checks]] = []
        missing = ids
        # A row that moves to a later version while we look is met in either; one that moves back
        # may slip from a space not yet read into one that was, and is met the second time.
        for _ in range(2 if len(spaces) > 1 and self.two_steps else 1):
            fresh = [part for version in spaces for part in self._get(version, missing)]
            parts += fresh
            there = joined_ids([rows.ids for rows, _ in fresh], self.id_type)
            missing = missing.filter(pc.invert(pc.is_in(missing, value_set=there)))
            if not len(missing):
                break
        return parts


def _without(keys: pa.Array, scores: Floats, ids: pa.Array) -> tuple[pa.Array, Floats]:
    """Return hits without those of some ids."""
    kept = pc.invert(pc.is_in(keys, value_set=ids))
    return keys.filter(kept), scores[kept.to_numpy(zero_copy_only=False)]
