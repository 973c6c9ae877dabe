"""The user's own tables and collections, read where they are: one reader, from which a class for
each database derives, and what it implements to fill a column of vectors as well."""

from __future__ import annotations

import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.filters import Condition, Filter, allowed_conditions
from evergram.stores.store import (
    Checks,
    Floats,
    Hits,
    ReadableStore,
    Rows,
    Space,
    best_by,
    joined_ids,
    was_closed,
)

# A row of the user's own has no checksum.
NO_CHECKS: Checks = np.zeros(0, dtype=np.uint32)
# Rows that are read at once.
BLOCK = 8_192
# In place of a version: the rows without a vector of any.
BARE = -1
_VERSION = re.compile(r"v(0|[1-9][0-9]{0,8})")
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class TableFacts(NamedTuple):
    """What a database says of a table now: the dim of each version and the types of its columns, in
    Qdrant the distances of its vectors."""

    id_type: pa.DataType
    dims: dict[int, int]
    types: dict[str, Any]


class AdoptedNames(NamedTuple):
    """The names after the # of an address: of the table, of the columns of ids (None if it does not
    say) and of each version's vectors, of those that filters may name, and all of it again."""

    table: str
    schema: str | None
    id: str | None
    vectors: dict[int, str]
    filters: tuple[str, ...]
    fragment: str


class AdoptedStore(ReadableStore):
    """A table that another program keeps. A row belongs to the newest version whose vector it has;
    one without an id is none. Only the column of the oldest version must be there: of a later one,
    which may be added or dropped at any moment, no row has a vector until then.

    Its rows have no norms, checksums or fingerprints. `retrieval` sets `check`, which is called
    with a version before the first of its rows is returned, and raises if they are not that
    version's. Every search compares all rows.

    Args:
        place: what stands before the # of the address.
        names: of the columns.
        to_fill: whether no column of vectors need be there, as they will be added.
    """

    # The keys after the # of an address, other than versions; the first must be there.
    keys: ClassVar[tuple[str, ...]] = ("table", "id", "filter")

    # The last facts that were read; of a view of one moment, they stay.
    _known: TableFacts
    _is_moment: bool = False
    # What `_filter_of` returned; None in a store without a filter.
    _chosen: Any = None
    _check: Callable[[int], None] | None = None
    _closed: bool = False

    def __init__(self, place: str, names: AdoptedNames, to_fill: bool = False) -> None:
        self._place, self._names, self._id = place, names, names.id or "id"
        self.to_fill = to_fill
        self._anywhere = place if "://" in place else str(Path(place).resolve())
        self.address = f"{self.kind}:{place}#{names.fragment}"
        # Shared by all views: the versions that were checked, and the state they were checked in.
        self._checked: set[int] = set()
        self._compared: list[object] = []
        self._connection: Any = None  # what `close` closes, if `_connect` opens anything
        self._connect()
        try:
            self._known = self._look()
            self.id_type = self._known.id_type
            self._compared.append(self._state())
        except BaseException:
            self.close()
            raise

    # A class for a database implements these, and `read_consistently`.

    @abstractmethod
    def _connect(self) -> None:
        """Open the database. Raises: DataError: the place is wrong. It must not be in `address` if
        a password may be."""

    @abstractmethod
    def _look(self) -> TableFacts:
        """Return what the table is like now. Raises: DataError, StoreError: it is not there, or
        lacks a column, or has one of a type that it may not have."""

    @abstractmethod
    def _filter_of(self, conditions: list[Condition]) -> Any:
        """Return conditions, all of which must hold, in the database's own terms. Raises:
        DataError: a value cannot be compared with its column."""

    @abstractmethod
    def _rows(
        self, version: int, ids: pa.Array | None, size: int, *, own: bool = True
    ) -> Iterator[Rows]:
        """Yield rows of a version, of some ids or of all, in blocks of about `size` at most; with
        `own`, without those that have a newer version's vector as well."""

    @abstractmethod
    def _count(self, version: int) -> int: ...

    @abstractmethod
    def _has_rows(self, version: int) -> bool: ...

    # It may override these.

    def computes(self, metric: str, version: int) -> bool:
        """Return whether `nearest_by` knows a metric without reading more than the database can."""
        return True

    def _by_database(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[Hits] | None:
        """Return for each query of [Q, D] the k best rows, compared by the database; None where
        they are to be read and compared here."""
        return None

    def _state(self) -> object:
        """Return what changes with every write to the table, if that can be told at a glance."""
        return None

    # All inherit these.

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`; a table is not created, but its columns of vectors may be missing."""
        place, _, rest = address.removeprefix(f"{cls.kind}:").rpartition("#")
        if not place:
            raise cls._wrong_address("it needs the place of the data, a # and names")
        return cls(place, cls._read_names(rest), create is not None)

    @classmethod
    def _wrong_address(cls, why: str) -> DataError:
        """Return the error for an address; `why` repeats no part of it: a password may be in it."""
        return DataError(
            f"The address of a store is wrong: {why}. A table of your own is "
            f"{cls.kind}:PLACE#{cls.keys[0]}=NAME&id=COLUMN&v0=COLUMN, with v1=… for later "
            "versions and filter=NAME,NAME for the columns that filters may name; write & in a "
            "name as %26, # as %23, a comma as %2C and % as %25."
        )

    @classmethod
    def _read_names(cls, rest: str) -> AdoptedNames:
        """Parse `table=TABLE&id=COLUMN&v0=COLUMN&filter=COLUMN,COLUMN`, what stands after the #.
        Raises: DataError: it is wrong; no name in it is repeated, as a password may be among
        them."""
        names: dict[str, str] = {}
        first = cls.keys[0]
        for number, part in enumerate(rest.split("&"), start=1):
            key, equals, name = part.partition("=")
            is_version = _VERSION.fullmatch(key) is not None
            if not equals or (not is_version and key not in cls.keys):
                keys = f"{', '.join(cls.keys)} or v and a version's number, such as v0"
                raise cls._wrong_address(
                    f"part {number} after the # is not KEY=NAME, where a KEY is {keys}"
                    f"{did_you_mean(key, cls.keys)}"
                )
            # In Qdrant a vector may have no name.
            if not name and not (is_version and first == "collection"):
                raise cls._wrong_address(f"no name stands after {key}=")
            if key in names:
                raise cls._wrong_address(f"{key}= is in it twice")
            if _NO_ESCAPE.search(name) or set("\0\ufffd") & set(unquote(name)):
                raise cls._wrong_address(
                    f"a % in the name after {key}= begins no escape of UTF-8; a % itself is %25"
                )
            names[key] = name if key == "filter" else unquote(name)
        vectors = {int(key[1:]): name for key, name in names.items() if _VERSION.fullmatch(key)}
        if first not in names or not vectors:
            missing = f"{first}=" if first not in names else "v0=, or of another version,"
            raise cls._wrong_address(f"{missing} is missing after the #")
        if len(set(vectors.values())) < len(vectors):
            raise DataError("Two versions are said to be in one column; each has its own.")
        # Without spaces, so that a service finds the whole address in an error, and leaves it out.
        fragment = "&".join(
            f"{key}={quote(name, safe=',%' if key == 'filter' else '')}"
            for key, name in names.items()
        )
        filters = tuple(unquote(one) for one in names.get("filter", "").split(",") if one)
        newest_last = dict(sorted(vectors.items()))
        schema, id_name = names.get("schema"), names.get("id")
        return AdoptedNames(names[first], schema, id_name, newest_last, filters, fragment)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._anywhere, self._names, self.to_fill)

    @property
    def place(self) -> str:
        return f"{self.kind}:{self._anywhere}#{self._names.fragment}"

    @property
    def side(self) -> str | None:
        """None: what it holds is proved by comparing rows, and nothing is recorded."""
        return None

    def where(self, conditions: Filter) -> Self:
        self._facts()
        view = copy(self)
        view._chosen = self._filter_of(allowed_conditions(conditions, self._names.filters))
        return view

    def spaces(self) -> dict[int, Space]:
        return {version: Space(version, dim, "") for version, dim in self._facts().dims.items()}

    def missing_columns(self) -> dict[int, str]:
        """Return the columns that the address names and the table does not have, by version."""
        there = self._facts().dims
        return {v: name for v, name in self._names.vectors.items() if v not in there}

    def filled(self) -> dict[int, Space]:
        return {v: space for v, space in self.spaces().items() if self._has_rows(v)}

    def count(self) -> dict[int, int]:
        counts = {version: self._count(version) for version in self.spaces()}
        return {version: rows for version, rows in counts.items() if rows}

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def set_check(self, check: Callable[[int], None]) -> None:
        """Have rows of each version checked before the first is returned."""
        self._check = check
        self._checked.clear()

    def require(self, version: int) -> None:
        """Check a version's rows, unless that was done; where a write can be told, again after each
        one: a job of every night may have put another model's vectors into the table.

        Raises: IntegrityError: by the check.
        """
        self._facts()
        state = self._state()
        if state not in self._compared:
            self._checked.clear()
            self._compared[:] = [state]
        if self._check is not None and version not in self._checked:
            self._check(version)
            self._checked.add(version)

    def column_rows(self, version: int, ids: pa.Array | None, size: int) -> Rows:
        """Return at most `size` vectors of a version, also of rows that have a newer version's."""
        dim, held = self._facts().dims[version], 0
        blocks = [Rows(version, pa.array([], self.id_type), np.zeros((0, dim), np.float32))]
        for rows in self._rows(version, ids, size, own=False):
            blocks.append(rows)
            held += len(rows)
            if held >= size:
                break
        keys = pa.concat_arrays([rows.ids for rows in blocks])[:size]
        self._refuse_twice_in(keys)
        return Rows(version, keys, np.concatenate([rows.vectors for rows in blocks])[:size])

    def nearest_by(
        self,
        metric: str,
        version: int,
        queries: Floats,
        k: int,
        ids: pa.Array | None,
        read: Callable[[Floats], Floats] | None = None,
    ) -> list[Hits]:
        """Return for each query of [Q, D] the k rows of a version that are best by "ip", by
        "cosine" or by "l2", −‖q − z‖², by a comparison with all rows.

        Args:
            read: maps vectors [n, D_v] of the version to those of the queries' version, [n, D].
        """
        self.require(version)
        hits = None
        if read is None and self.computes(metric, version):
            hits = self._by_database(metric, version, queries, k, ids)

        def blocks() -> Iterator[Rows]:
            for start in range(0, 1 if ids is None else len(ids), BLOCK):
                part = None if ids is None else ids[start : start + BLOCK]
                for rows in self._rows(version, part, BLOCK):
                    self._verify(rows, NO_CHECKS)
                    self._refuse_twice_in(rows.ids)
                    yield rows if read is None else replace(rows, vectors=read(rows.vectors))

        if hits is None:
            hits = best_by(metric, queries, k, blocks(), version, self.id_type)
        for one in hits:
            self._refuse_twice_in(one.ids)
        return hits

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        return [(h.ids, h.scores) for h in self.nearest_by("ip", version, queries, k, ids)]

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        blocks: list[tuple[Rows, Checks]] = []
        for version in self.spaces():
            mine = [rows for rows in self._rows(version, ids, BLOCK) if len(rows)]
            if mine:
                self.require(version)
                self._refuse_twice_in(pa.concat_arrays([rows.ids for rows in mine]))
            blocks += [(rows, NO_CHECKS) for rows in mine]
        return blocks

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        self.require(version)
        for rows in self._rows(version, None, size):
            self._refuse_twice_in(rows.ids)
            yield rows, NO_CHECKS

    def _refuse_twice_in(self, keys: pa.Array) -> None:
        """Raises: IntegrityError: an id of rows that were read is there twice."""
        if len(pc.unique(keys)) < len(keys):
            raise IntegrityError(f"{self.address} has an id twice; each row needs its own.")

    def _check_columns(
        self,
        types: dict[str, Any],
        names: Iterable[str],
        fits: Callable[[Any], object],
        needed: str,
    ) -> None:
        """Raises: StoreError: the table lacks one of these columns, or it is of another type."""
        for name in names:
            if name not in types:
                raise StoreError(
                    f"{self.address} names the column {name!r}, which the table does not have; it "
                    f"has {', '.join(sorted(types))}."
                )
            if not fits(types[name]):
                raise StoreError(
                    f"The column {name!r} of {self.address} is of type {types[name]}; it must be "
                    f"{needed}."
                )

    def _wanted(self, there: Collection[str]) -> dict[int, str]:
        """Return the columns of vectors that are there, or must be."""
        oldest = None if self.to_fill else min(self._names.vectors)
        return {v: c for v, c in self._names.vectors.items() if v == oldest or c in there}

    def _conditions_on(self, version: int, own: bool = True) -> Iterator[tuple[str, bool]]:
        """Yield the columns by which a row is of a version, and whether its vector is there."""
        for one in self._known.dims:
            if one == version or (own and one > version):
                yield self._names.vectors[one], one == version

    def _facts(self) -> TableFacts:
        """Raises: StoreError: the ids have another type than when the table was opened."""
        if self._closed:
            raise was_closed(self.address)
        if not self._is_moment:
            self._known = self._look()
            # A column that was dropped may come back with other vectors.
            self._checked.intersection_update(self._known.dims)
        if self._known.id_type != self.id_type:
            raise StoreError(
                f"The ids of {self.address} are {self._known.id_type} now, and were {self.id_type} "
                "when it was opened; open it again."
            )
        return self._known

    def _at_this_moment(self, **read_from: Any) -> Self:
        """Return a view that reads from other attributes."""
        view = copy(self)
        vars(view).update(read_from, _is_moment=True)
        return view

    def _verify(self, rows: Rows, checks: Checks) -> None:
        bad = np.flatnonzero(~np.isfinite(rows.vectors).all(axis=1))
        if len(bad):
            raise IntegrityError(
                f"The vector of id {rows.ids[bad[0]]} in {self.address} is not finite; correct it."
            )


class FillableTable(AdoptedStore):
    """A table in which the vectors of a version can be written to a column. Nothing else in it is
    changed, and no cell that has a vector; a journal next to it has the ids of the cells that were
    written, so that they can be emptied again."""

    @abstractmethod
    def begin_column(self, version: int, dim: int) -> None:
        """Add the journal, and the column, unless they are there; a column of that type which the
        newest one has."""

    @abstractmethod
    def bare_ids(self) -> Iterator[pa.Array]:
        """Yield the ids of rows that have no vector, in blocks."""

    @abstractmethod
    def write_cells(self, rows: Rows) -> None:
        """Write the vectors of rows that are there and have none of this version, with their ids to
        the journal, in one transaction or there first. Again, it changes nothing."""

    @abstractmethod
    def journal(self, version: int) -> list[tuple[int, pa.Array]]:
        """Return the number and the ids of each part that was written to the column."""

    @abstractmethod
    def clear_cells(self, number: int, rows: Rows) -> None:
        """Empty the cells that still have these vectors, and then drop that part of the journal."""

    @abstractmethod
    def drop_column(self, version: int) -> None:
        """Drop the column if `begin_column` added it and it is empty, and what the journal has of
        it; and the journal, if it has nothing else."""

    def check_column(self, version: int, dim: int) -> None:
        """Raises: DataError: the address names no column for a version, or one of another dim."""
        space = self.spaces().get(version)
        if version not in self._names.vectors or (space is not None and space.dim != dim):
            is_wrong = f"has {space.dim} dims, not {dim}" if space else "is not named"
            raise DataError(
                f"The column of {self.address} for the vectors of version {version} {is_wrong}; "
                f"write &v{version}=COLUMN in the address. A column that is not there is added."
            )

    @property
    def _journal_name(self) -> str:
        return f"{self._names.table}_evergram"

    def _stored_rows(self, rows: Rows) -> Iterator[Rows]:
        self._facts()
        for start in range(0, len(rows), BLOCK):
            yield from self._rows(rows.version, rows.ids[start : start + BLOCK], BLOCK, own=False)

    def _without_vector(self, rows: Rows) -> Rows:
        return rows.without(joined_ids([r.ids for r in self._stored_rows(rows)], self.id_type))

    def _unchanged(self, rows: Rows, tolerance: float = 0.0) -> pa.Array:
        """Return the ids whose vectors are these, but for this part of their length."""
        same = []
        for stored in self._stored_rows(rows):
            expected = rows.vectors[pc.index_in(stored.ids, value_set=rows.ids).to_numpy()]
            apart = np.linalg.norm(stored.vectors.astype(np.float64) - expected, axis=1)
            equal = apart <= tolerance * np.linalg.norm(expected, axis=1)
            same.append(stored.ids.filter(pa.array(equal)))
        return joined_ids(same, self.id_type)


def not_changed(shown: str) -> StoreError:
    """Return the error for what Evergram does not do to a table or a collection of one's own."""
    return StoreError(
        f"{shown} is a table or a collection of your own, in which Evergram at most fills a column "
        "of vectors; build its indexes by your own program."
    )


def canonical_uuids(texts: Sequence[str]) -> list[str]:
    """Return those of some texts that are UUIDs as they are usually written, in lower case."""
    known = []
    for text in texts:
        with suppress(ValueError):
            known += [text] if str(uuid.UUID(text)) == text else []
    return known
