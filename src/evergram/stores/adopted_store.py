"""The user's own tables and collections, read in place; a column of vectors can be filled."""

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
    Store,
    best_by,
    joined_ids,
    joined_rows,
    was_closed,
)

# The user's rows have no checksums.
NO_CHECKS: Checks = np.zeros(0, dtype=np.uint32)
BLOCK = 8_192  # rows read at once
BARE = -1  # instead of a version: the rows without any vector
_VERSION = re.compile(r"v(0|[1-9][0-9]{0,8})")
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class TableFacts(NamedTuple):
    """The current dim of each version, and type (in Qdrant: distance) of each column."""

    id_type: pa.DataType
    dims: dict[int, int]
    types: dict[str, Any]


class AdoptedNames(NamedTuple):
    """The names after the # of an address: the table, the id column (None if not given), the vector
    column of each version, the columns that filters may use, and the text itself."""

    table: str
    schema: str | None
    id: str | None
    vectors: dict[int, str]
    filters: tuple[str, ...]
    fragment: str


class AdoptedStore(ReadableStore):
    """A table that another program writes. A row belongs to the newest version whose vector it has;
    rows without an id are ignored. Only the oldest version's column must exist: later ones may be
    added or dropped at any time.

    The rows have no norms, checksums or fingerprints. Instead, `retrieval` sets a check, which runs
    before the first row of a version is returned and raises if the rows are not of that version.
    Every search compares all rows.
    Filling a version's column changes nothing else, and never overwrites a vector; a journal next
    to the table lists the ids of the written cells, so that they can be emptied again.

    Args:
        place: the part of the address before the #.
        to_fill: whether all vector columns may be missing, because they will be added.
    """

    adopted: ClassVar[bool] = True
    # The keys after the # of an address, other than versions; the first is required.
    keys: ClassVar[tuple[str, ...]] = ("table", "id", "filter")

    # The last facts read; fixed in a snapshot view.
    _known: TableFacts
    _is_moment: bool = False
    # The result of `_filter_of`; None without a filter.
    _chosen: Any = None
    _check: Callable[[AdoptedStore, int], None] | None = None
    _closed: bool = False

    def __init__(self, place: str, names: AdoptedNames, to_fill: bool = False) -> None:
        self._place, self._names, self._id = place, names, names.id or "id"
        self.to_fill = to_fill
        self._anywhere = place if "://" in place else str(Path(place).resolve())
        self.address = f"{self.kind}:{place}#{names.fragment}"
        # Shared by all views: the checked versions, and the state in which they were checked.
        self._checked: set[int] = set()
        self._compared: list[object] = []
        self._connection: Any = None  # set by `_connect` if `close` must close it
        self._connect()
        try:
            self._known = self._look()
            self.id_type = self._known.id_type
            self._compared.append(self._state())
        except BaseException:
            self.close()
            raise

    # Subclasses implement these and `read_consistently`.

    @abstractmethod
    def _connect(self) -> None:
        """Open `place`; keep passwords out of `address`. Raises: DataError: `place` is wrong."""

    @abstractmethod
    def _look(self) -> TableFacts:
        """Raises: DataError, StoreError: the table or a column is missing, or has a wrong type."""

    @abstractmethod
    def _filter_of(self, conditions: list[Condition]) -> Any:
        """Return the database's filter for rows that meet all conditions. Raises: DataError: a
        value cannot be compared with its column."""

    @abstractmethod
    def _rows(
        self, version: int, ids: pa.Array | None, size: int, *, own: bool = True
    ) -> Iterator[Rows]:
        """Yield a version's rows, all or those with `ids`, in blocks of at most about `size`; with
        `own`, skip rows that also have a newer version's vector."""

    @abstractmethod
    def _count(self, version: int) -> int: ...

    @abstractmethod
    def _has_rows(self, version: int) -> bool: ...

    @abstractmethod
    def bare_ids(self) -> Iterator[pa.Array]: ...

    @abstractmethod
    def begin(self, space: Space, side: str = "") -> None:
        """Add the column if it is missing, with the type of the newest one. Idempotent."""

    @abstractmethod
    def refresh(self, rows: Rows, saved: Store | None = None) -> None:
        """Write the vectors of existing rows that lack this version's. Their ids go to the journal
        first or in the same transaction. Idempotent."""

    @abstractmethod
    def journal(self, version: int) -> list[tuple[int, pa.Array]]:
        """Return the number and the ids of each journal entry for the column."""

    @abstractmethod
    def clear_cells(self, number: int, rows: Rows) -> None:
        """Empty the cells that still have these vectors, then delete the journal entry."""

    @abstractmethod
    def _drop_column(self, version: int) -> None:
        """Drop the column if `begin` added it and it is empty; then delete its journal entries, and
        the journal if nothing is left."""

    # Subclasses may override these.

    def computes(self, metric: str, version: int) -> bool:
        """Return whether the database itself can search by a metric."""
        return True

    def _by_database(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[Hits] | None:
        """Return the database's k best rows for each query of [Q, D], or None if it cannot."""
        return None

    def _state(self) -> object:
        """Return a value that changes with every write to the table, if one is cheap to read."""
        return None

    # Subclasses inherit these.

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`. `create` creates no table, but lets vector columns be missing."""
        place, _, rest = address.removeprefix(f"{cls.kind}:").rpartition("#")
        if not place:
            raise cls._wrong_address("it needs the place of the data, a # and names")
        return cls(place, cls._read_names(rest), create is not None)

    @classmethod
    def _wrong_address(cls, why: str) -> DataError:
        """Return the error for an address; `why` must not quote it: it may hold a password."""
        return DataError(
            f"The address of a store is wrong: {why}. A table of your own is "
            f"{cls.kind}:PLACE#{cls.keys[0]}=NAME&id=COLUMN&v0=COLUMN, with v1=… for later "
            "versions and filter=NAME,NAME for the columns that filters may name; write & in a "
            "name as %26, # as %23, a comma as %2C and % as %25."
        )

    @classmethod
    def _read_names(cls, rest: str) -> AdoptedNames:
        """Parse `table=TABLE&id=COLUMN&v0=COLUMN&filter=COLUMN,COLUMN`, the part after the #.
        Raises: DataError: it is malformed; the message quotes no name, which may be a password."""
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
            # In Qdrant a vector may be unnamed.
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
        # Without spaces, so that a service can remove the whole address from an error.
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
    def absolute_address(self) -> str:
        return f"{self.kind}:{self._anywhere}#{self._names.fragment}"

    @property
    def side(self) -> str | None:
        """None: the table records no side; the check compares its rows instead."""
        return None

    def where(self, conditions: Filter) -> Self:
        self._facts()
        view = copy(self)
        view._chosen = self._filter_of(allowed_conditions(conditions, self._names.filters))
        return view

    def spaces(self) -> dict[int, Space]:
        return {version: Space(version, dim, "") for version, dim in self._facts().dims.items()}

    def missing_columns(self) -> dict[int, str]:
        """Return, by version, the columns in the address that the table lacks."""
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

    def set_check(self, check: Callable[[AdoptedStore, int], None]) -> None:
        """Set the function that checks a version's rows before the first is returned; it gets the
        view from which they are read."""
        self._check = check
        self._checked.clear()

    def require(self, version: int) -> None:
        """Check a version's rows once, and again after each write if `_state` shows writes: a
        nightly job may have written another model's vectors.

        Raises: IntegrityError: the check failed.
        """
        self._facts()
        state = self._state()
        if state not in self._compared:
            self._checked.clear()
            self._compared[:] = [state]
        if self._check is not None and version not in self._checked:
            unfiltered = copy(self)
            unfiltered._chosen = None
            self._check(unfiltered, version)
            self._checked.add(version)

    def stale(self, target: int) -> list[int]:
        # A row is read by its newest vector.
        return [version for version in self.filled() if version < target]

    def build_index(self) -> list[int]:
        raise StoreError(
            f"{self.address} is a table or a collection of your own, in which Evergram at most "
            "fills a column of vectors; build its indexes by your own program."
        )

    def space_to_fill(self, plain: Space, with_norms: Space) -> Space:
        """Return the space to fill. Raises: DataError: the address names no column for the version,
        or its dim differs."""
        version, there = plain.version, self.spaces().get(plain.version)
        if version not in self._names.vectors or (there is not None and there.dim != plain.dim):
            is_wrong = f"has {there.dim} dims, not {plain.dim}" if there else "is not named"
            raise DataError(
                f"The column of {self.address} for the vectors of version {version} {is_wrong}; "
                f"write &v{version}=COLUMN in the address. A column that is not there is added."
            )
        return plain

    def undo(
        self, version: int, source: ReadableStore, saved: Store | None = None
    ) -> Iterator[tuple[int, int]]:
        """Empty the cells of the journal that still have the vectors of `source`. Yield the entries
        done and total, first before anything is written."""
        self.to_fill = True  # the oldest column may be dropped, too
        entries = self.journal(version)
        yield 0, len(entries)
        for done, (number, ids) in enumerate(entries, start=1):
            # The column may have been dropped by its owner.
            if version in self.spaces() and (parts := source.fetch(ids)):
                self.clear_cells(number, joined_rows(parts))
            yield done, len(entries)
        self._drop_column(version)

    def column_rows(self, version: int, ids: pa.Array | None, size: int) -> Rows:
        """Return at most `size` rows with a version's vector, even if they have a newer one."""
        dim, held = self._facts().dims[version], 0
        blocks = [Rows(version, pa.array([], self.id_type), np.zeros((0, dim), np.float32))]
        for rows in self._rows(version, ids, size, own=False):
            blocks.append(rows)
            held += len(rows)
            if held >= size:
                break
        rows = joined_rows(blocks)
        keys = rows.ids[:size]
        self._refuse_twice_in(keys)
        return Rows(version, keys, rows.vectors[:size])

    def nearest_by(
        self,
        metric: str,
        version: int,
        queries: Floats,
        k: int,
        ids: pa.Array | None,
        read: Callable[[Floats], Floats] | None = None,
    ) -> list[Hits]:
        """Return a version's k best rows for each query of [Q, D], compared with all rows by "ip",
        "cosine" or "l2" (−‖q − z‖²).

        Args:
            read: maps the version's vectors [n, D_v] to the queries' version, [n, D].
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
        if not self._is_moment:
            # A row whose newest vector is written or emptied meanwhile must not be missed.
            return self.read_consistently(lambda view: view._read(ids))
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
        """Raises: IntegrityError: an id occurs twice."""
        if len(pc.unique(keys)) < len(keys):
            raise IntegrityError(f"{self.address} has an id twice; each row needs its own.")

    def _check_columns(
        self,
        types: dict[str, Any],
        names: Iterable[str],
        fits: Callable[[Any], object],
        needed: str,
    ) -> None:
        """Raises: StoreError: a column is missing, or does not fit."""
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
        """Return the vector columns that exist or are required."""
        oldest = None if self.to_fill else min(self._names.vectors)
        return {v: c for v, c in self._names.vectors.items() if v == oldest or c in there}

    def _conditions_on(self, version: int, own: bool = True) -> Iterator[tuple[str, bool]]:
        """Yield the columns that define a version's rows, and whether each must have a vector."""
        for one in self._known.dims:
            if one == version or (own and one > version):
                yield self._names.vectors[one], one == version

    @property
    def _journal_name(self) -> str:
        return f"{self._names.table}_evergram"

    def _type_of(self, version: int) -> Any:
        """Return the type of a version's column. Raises: StoreError: the column was dropped."""
        types, name = self._facts().types, self._names.vectors[version]
        self._check_columns(types, [name], lambda _: True, "")
        return types[name]

    def _stored_rows(self, rows: Rows) -> Iterator[Rows]:
        self._type_of(rows.version)
        for start in range(0, len(rows), BLOCK):
            yield from self._rows(rows.version, rows.ids[start : start + BLOCK], BLOCK, own=False)

    def _without_vector(self, rows: Rows) -> Rows:
        return rows.without(joined_ids([r.ids for r in self._stored_rows(rows)], self.id_type))

    def _facts(self) -> TableFacts:
        """Raises: StoreError: the type of the ids has changed since the table was opened."""
        if self._closed:
            raise was_closed(self.address)
        if not self._is_moment:
            self._known = self._look()
            # A dropped column may return with other vectors.
            self._checked.intersection_update(self._known.dims)
        if self._known.id_type != self.id_type:
            raise StoreError(
                f"The ids of {self.address} are {self._known.id_type} now, and were {self.id_type} "
                "when it was opened; open it again."
            )
        return self._known

    def _at_this_moment(self, **read_from: Any) -> Self:
        """Return a snapshot view with some attributes replaced."""
        view = copy(self)
        vars(view).update(read_from, _is_moment=True)
        return view

    def _verify(self, rows: Rows, checks: Checks) -> None:
        bad = np.flatnonzero(~np.isfinite(rows.vectors).all(axis=1))
        if len(bad):
            raise IntegrityError(
                f"The vector of id {rows.ids[bad[0]]} in {self.address} is not finite; correct it."
            )


def canonical_uuids(texts: Sequence[str]) -> list[str]:
    """Return the texts that are UUIDs in canonical form (lower case, with hyphens)."""
    known = []
    for text in texts:
        with suppress(ValueError):
            known += [text] if str(uuid.UUID(text)) == text else []
    return known
