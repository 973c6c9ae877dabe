"""Stores that keep each version in a separate table or collection."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, EvergramError, FormatError, StoreError
from evergram.stores.store import (
    ID_TYPES,
    Checks,
    Floats,
    Rows,
    Space,
    Store,
    best_first,
    checked_name,
    joined_ids,
    no_store,
    products,
)

FORMAT = 1
WIDER = 4  # the factor by which a search is widened if later versions supersede some of its hits


class TablePerVersionStore(Store):
    """A store that keeps each id in one space, by transactions or, if there are none across tables
    (`two_steps`), by the order of steps: a row is first written and then removed from other spaces,
    and readers look a second time for ids that they did not find. If a writer is killed in between,
    the id is in two spaces and never lost: searches and `scan` ignore the earlier version's row,
    until the next write of the id or `remove_superseded` removes it."""

    two_steps: ClassVar[bool] = True

    # A view's record; None if each call reads it.
    _moment: Mapping[str, Any] | None = None

    def __init__(self, place: str, name: str, create: str | None) -> None:
        self._place, self._name = place, name
        self.address = f"{self.kind}:{place}#{name}"
        self._connect(create is not None)
        try:
            if self._found() is None and create is not None:
                with self._writing() as store:
                    if store._found() is None:
                        store._save({"format_version": FORMAT, "id_type": create, "side": None})
            self.id_type = ID_TYPES[self._record()[0]["id_type"]]
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`."""
        place, _, name = address.removeprefix(f"{cls.kind}:").rpartition("#")
        if not place:
            raise DataError(
                f"{address!r} is not a store address of the form {cls.kind}:PLACE#NAME."
            )
        return cls(place, checked_name(name), create)

    @property
    def absolute_address(self) -> str:
        is_url = "://" in self._place
        return self.address if is_url else f"{self.kind}:{Path(self._place).resolve()}#{self._name}"

    # A kind of store implements these, and `_scan`, `read_consistently`, `build_index` and `close`.

    @abstractmethod
    def _connect(self, create: bool) -> None:
        """Open the database. Raises: DataError: the address is wrong, or nothing exists there and
        `create` is False."""

    @abstractmethod
    def _load(self) -> Mapping[str, Any] | None:
        """Return the record that `_save` wrote last, or None. Raises: errors of JSON parsing, if it
        is damaged."""

    @abstractmethod
    def _save(self, record: dict[str, Any]) -> None:
        """Write the record durably."""

    @abstractmethod
    def _make_table(self, space: Space) -> None:
        """Create the table of a space, replacing an empty one that a killed writer left. Raises:
        StoreError: the table belongs to another program."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Self]:
        """Hold the write lock and return the store to write to. Without the lock, two writers that
        move an id to different spaces could each remove the row that the other wrote."""

    @abstractmethod
    def _put(self, rows: Rows, checks: Checks) -> None:
        """Write rows into their space."""

    @abstractmethod
    def _remove(self, version: int, ids: pa.Array) -> None:
        """Remove ids from a space; many may not be in it."""

    @abstractmethod
    def _get(self, version: int, ids: pa.Array) -> Iterator[tuple[Rows, Checks]]:
        """Yield the rows of the ids that are in a space, in non-empty parts."""

    @abstractmethod
    def _count(self, version: int) -> int:
        """Return the number of rows in a space."""

    @abstractmethod
    def _best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        """Search like `_nearest`, in one table only, ignoring the others."""

    # All kinds inherit these.

    def _found(self) -> tuple[Mapping[str, Any], dict[int, Space]] | None:
        """Return the record and its spaces by version, or None without a record. Raises:
        FormatError: it has a later format. StoreError: it is damaged or not a record."""
        try:
            raw = self._load() if self._moment is None else self._moment
            if raw is None:
                return None
            if raw["format_version"] != FORMAT:
                raise FormatError(
                    f"{self.address} has format {raw['format_version']}; this Evergram reads "
                    f"{FORMAT}: use a later Evergram."
                )
            if raw["id_type"] not in ID_TYPES:
                raise ValueError(f"id_type is {raw['id_type']!r}")
            spaces = {int(key[1:]): Space(**raw[key]) for key in raw if re.fullmatch(r"v\d+", key)}
            return raw, dict(sorted(spaces.items()))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if isinstance(error, EvergramError):
                raise
            raise StoreError(
                f"{self.address} cannot be read: it is not a store, or its record is damaged "
                f"({type(error).__name__}: {error}); give another name after #, or restore it from "
                "a copy."
            ) from error

    def _record(self) -> tuple[Mapping[str, Any], dict[int, Space]]:
        record = self._found()
        if record is None:
            raise no_store(self.address)
        return record

    @property
    def side(self) -> str | None:
        side: str | None = self._record()[0].get("side")
        return side

    def spaces(self) -> dict[int, Space]:
        return self._record()[1]

    def state(self, version: int) -> object:
        return self._record()[0].get(f"state{version}") or object()  # None during a write

    def count(self) -> dict[int, int]:
        counts = {version: self._count(version) for version in self.spaces()}
        return {version: count for version, count in counts.items() if count}

    def scan(self, version: int | None = None, size: int = 65_536) -> Iterator[Rows]:
        for rows in super().scan(version, size):
            superseded = self._superseded(rows.version, rows.ids)
            living = rows.without(superseded) if len(superseded) else rows
            if len(living):
                yield living

    def remove_superseded(self) -> int:
        removed, mark = 0, self._record()[0].get("moving")
        # The last space has no later one.
        for version in list(self.spaces())[:-1] if self.two_steps else []:
            for rows, _ in self._scan(version, 65_536):
                superseded = self._superseded(version, rows.ids)
                if not len(superseded):
                    continue
                with self._writing() as store:
                    # Check again under the lock: another writer may have moved some of them.
                    superseded = store._superseded(version, superseded)
                    store._remove(version, superseded)
                removed += len(superseded)
        if mark is not None:
            with self._writing() as store:
                if store._record()[0].get("moving") == mark:
                    store._set_fields({"moving": None})
        return removed

    def _superseded(self, version: int, ids: pa.Array) -> pa.Array:
        """Return the ids of a space that are also in a later space: a writer has added them there
        but not yet removed them here, or was killed in between."""
        later = [number for number in self.spaces() if number > version] if self.two_steps else []
        parts = [rows.ids for number in later if len(ids) for rows, _ in self._get(number, ids)]
        return joined_ids(parts, self.id_type).unique()

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        width = k
        while True:
            best, living = self._best(version, queries, width, ids, exact), []
            hits = joined_ids([keys for keys, _ in best], self.id_type)
            superseded = self._superseded(version, hits.unique())
            for keys, scores in best:
                is_living = pc.invert(pc.is_in(keys, value_set=superseded))
                mask = is_living.to_numpy(zero_copy_only=False)
                living.append((keys.filter(is_living).slice(0, k), scores[mask][:k]))
            # A table that returned fewer rows than requested has no more.
            if all(
                len(living_keys) == k or len(keys) < width
                for (living_keys, _), (keys, _) in zip(living, best, strict=True)
            ):
                return living
            width *= WIDER

    def _best_among(
        self, version: int, queries: Floats, k: int, ids: pa.Array
    ) -> list[tuple[pa.Array, Floats]]:
        """Search like `_best` by reading the rows of the ids, which is exact and needs no index."""
        keys = [pa.array([], self.id_type)]
        vectors = [np.zeros((0, queries.shape[1]), dtype=np.float32)]
        for rows, checks in self._get(version, ids):
            self._verify(rows, checks)
            keys.append(rows.ids)
            vectors.append(rows.vectors)
        found, block = pa.concat_arrays(keys), np.concatenate(vectors)
        return [best_first(found, products(query[None], block)[0], k) for query in queries]

    def _set_fields(self, fields: dict[str, Any]) -> None:
        """Set some fields of the record; the others stay."""
        self._save({**self._record()[0], **fields})

    def _add_space(self, space: Space) -> None:
        with self._writing() as store:
            record, spaces = store._record()
            if space.version not in spaces:
                store._make_table(space)
                store._save({**record, f"v{space.version}": asdict(space)})

    def _set_side(self, side: str) -> None:
        with self._writing() as store:
            record, _ = store._record()
            if record.get("side") is None:
                store._save({**record, "side": side})

    def _write(self, rows: Rows, checks: Checks) -> None:
        with self._writing() as store:
            state, before = f"state{rows.version}", store._record()[0].get("moving")
            # If it is killed, the mark stays until `remove_superseded`.
            store._set_fields({state: None, "moving": uuid4().hex})
            store._put(rows, checks)
            for version in store.spaces():
                if version != rows.version:
                    store._remove(version, rows.ids)
            store._set_fields({state: uuid4().hex, "moving": before})

    def _delete(self, ids: pa.Array) -> None:
        with self._writing() as store:
            # In ascending order: if it is killed, no earlier row of an id reappears.
            for version in store.spaces():
                store._remove(version, ids)

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        spaces = list(self.spaces())
        parts: list[tuple[Rows, Checks]] = []
        missing = ids
        # A row that moves to a later version during the read is found in one of them. A row that
        # moves to an earlier version can be missed, but the second pass finds it.
        for _ in range(2 if len(spaces) > 1 and self.two_steps else 1):
            fresh = [part for version in spaces for part in self._get(version, missing)]
            parts += fresh
            found_ids = joined_ids([rows.ids for rows, _ in fresh], self.id_type)
            missing = missing.filter(pc.invert(pc.is_in(missing, value_set=found_ids)))
            if not len(missing):
                break
        return parts
