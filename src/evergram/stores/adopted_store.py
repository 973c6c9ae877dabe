"""The user's own tables and collections, read where they are: one reader, from which a class for
each database derives."""

from __future__ import annotations

import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.filters import Condition, Filter, allowed_conditions
from evergram.stores.rows import Checks, Floats, Hits, Rows, Space, best_by
from evergram.stores.store import ReadableStore, was_closed

# A row of the user's own has no checksum.
NO_CHECKS: Checks = np.zeros(0, dtype=np.uint32)
# Rows that are read at once.
BLOCK = 8_192
_VERSION = re.compile(r"v(0|[1-9][0-9]{0,8})")
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True)
class TableFacts:
    """What a database says of a table now: the dim of each version and the types of its columns, in
    Qdrant the distances of its vectors."""

    id_type: pa.DataType
    dims: dict[int, int]
    types: dict[str, Any]


class AdoptedStore(ReadableStore):
    """A table that Evergram only reads. A row belongs to the newest version whose vector it has;
    one without an id is none.

    Its rows have no norms, checksums or fingerprints. `retrieval` sets `check`, which is called
    with a version before the first of its rows is returned, and raises if they are not that
    version's. Every search compares all rows.

    Args:
        where: the database, as `_place_of` returned it.
        names: of the columns.
    """

    # How an address is written, and the keys after its # other than versions.
    form: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ("table", "id", "filter")

    # The last facts that were read; of a view of one moment, they stay.
    _known: TableFacts
    _is_moment: bool = False
    # What `_filter_of` returned; None in a store without a filter.
    _chosen: Any = None
    _check: Callable[[int], None] | None = None
    _closed: bool = False

    def __init__(self, where: Any, names: AdoptedNames) -> None:
        self._where, self._names = where, names
        # Shared by all views: the versions that were checked, and the state they were checked in.
        self._checked: set[int] = set()
        self._compared: list[object] = []
        self._connect()
        try:
            self._known = self._look()
            self._id_type: pa.DataType = self._known.id_type
            self._compared.append(self._state())
        except BaseException:
            self.close()
            raise

    # A class for a database implements these, and `read_consistently`.

    @classmethod
    @abstractmethod
    def _place_of(cls, place: str, names: AdoptedNames) -> Any:
        """Return `where`, given what stands before the #. Raises: DataError: it is wrong."""

    @property
    @abstractmethod
    def _anywhere(self) -> Any:
        """`where`, independent of the current folder."""

    @abstractmethod
    def _connect(self) -> None: ...

    @abstractmethod
    def _disconnect(self) -> None: ...

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

    @staticmethod
    def _shown(where: Any) -> str:
        """Return `where` as an address has it, without a password."""
        return str(where)

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
        """See `open_store`. Raises: StoreError: it shall be created, and so written."""
        place, hash_sign, rest = address.removeprefix(f"{cls.kind}:").rpartition("#")
        if not hash_sign:
            raise wrong_address("there is no # in it, after which the names stand", cls.form)
        if not place:
            why = "nothing stands before the #, where the place of the data is"
            raise wrong_address(why, cls.form)
        names = read_names(rest, cls.keys, cls.form)
        where = cls._place_of(place, names)
        if create is not None:
            raise read_only(f"A {cls.kind}")
        return cls(where, names)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._anywhere, self._names)

    @property
    def address(self) -> str:
        return f"{self.kind}:{self._shown(self._where)}#{self._names.fragment}"

    @property
    def place(self) -> str:
        return f"{self.kind}:{self._shown(self._anywhere)}#{self._names.fragment}"

    @property
    def id_type(self) -> pa.DataType:
        return self._id_type

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
        dims = self._facts().dims
        return {version: Space(version, dim, "") for version, dim in dims.items()}

    def filled(self) -> dict[int, Space]:
        return {v: space for v, space in self.spaces().items() if self._has_rows(v)}

    def count(self) -> dict[int, int]:
        counts = {version: self._count(version) for version in self.spaces()}
        return {version: rows for version, rows in counts.items() if rows}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._disconnect()

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
        blocks = [Rows(version, pa.array([], self._id_type), np.zeros((0, dim), np.float32))]
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
        if hits is None:
            blocks = self._as_read(version, ids, read)
            hits = best_by(metric, queries, k, blocks, version, self._id_type)
        for one in hits:
            self._refuse_twice_in(one.ids)
        return hits

    def _as_read(
        self, version: int, ids: pa.Array | None, read: Callable[[Floats], Floats] | None
    ) -> Iterator[Rows]:
        parts = [ids] if ids is None else [ids[i : i + BLOCK] for i in range(0, len(ids), BLOCK)]
        for part in parts:
            for rows in self._rows(version, part, BLOCK):
                self._verify(rows, NO_CHECKS)
                self._refuse_twice_in(rows.ids)
                yield rows if read is None else replace(rows, vectors=read(rows.vectors))

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

    def _facts(self) -> TableFacts:
        """Raises: StoreError: the ids have another type than when the table was opened."""
        if self._closed:
            raise was_closed(self.address)
        if not self._is_moment:
            self._known = self._look()
        if self._known.id_type != self._id_type:
            words = {pa.int64(): "whole numbers", pa.string(): "texts"}
            raise StoreError(
                f"The ids of {self.address} are {words[self._known.id_type]} now, and were "
                f"{words[self._id_type]} when it was opened; open it again."
            )
        return self._known

    def _at_this_moment(self) -> Self:
        """Return a view, to which a class for a database gives what it reads from."""
        view = copy(self)
        view._is_moment = True
        return view

    def _verify(self, rows: Rows, checks: Checks) -> None:
        bad = np.flatnonzero(~np.isfinite(rows.vectors).all(axis=1))
        if len(bad):
            raise IntegrityError(
                f"The vector of id {rows.ids[bad[0]]} in {self.address} is not finite; correct it."
            )


def check_column(
    shown: str, name: str, types: dict[str, Any], fits: Callable[[Any], bool], allowed: str
) -> None:
    """Raises: StoreError: a table does not have a column, or it is of a type that does not fit."""
    if name not in types:
        raise StoreError(
            f"{shown} names the column {name!r}, which the table does not have; it has "
            f"{', '.join(sorted(types))}."
        )
    if not fits(types[name]):
        raise StoreError(
            f"The column {name!r} of {shown} is of type {types[name]}; it must be {allowed}."
        )


def read_only(shown: str) -> StoreError:
    """Return the error for writing to a table or a collection that Evergram only reads."""
    return StoreError(
        f"{shown} is a table or a collection of your own, which Evergram only reads. Write new "
        "vectors to it by your own program, into a column (in Qdrant: a named vector) of their "
        "version, or fill a store of Evergram's: 'evergram store fill' with an address such as "
        "snapshot:DIR."
    )


@dataclass(frozen=True)
class AdoptedNames:
    """The names after the # of an address: of the table, of the columns of ids (None if it does not
    say) and of each version's vectors, of those that filters may name, and all of it again."""

    table: str
    schema: str | None
    id: str | None
    vectors: dict[int, str]
    filters: tuple[str, ...]
    fragment: str


def wrong_address(why: str, form: str) -> DataError:
    """Return the error for an address; `why` repeats no part of it: a password may be in it."""
    return DataError(f"The address of a store is wrong: {why}. A table of your own is {form}.")


def read_names(rest: str, known: Sequence[str], form: str) -> AdoptedNames:
    """Parse `table=TABLE&id=COLUMN&v0=COLUMN&filter=COLUMN,COLUMN`, what stands after the #; of the
    keys `known` the first must be there. Raises: DataError: it is wrong; no name in it is repeated,
    as a password may be among them."""
    names: dict[str, str] = {}
    for number, part in enumerate(rest.split("&"), start=1):
        key, equals, name = part.partition("=")
        is_version, why = _VERSION.fullmatch(key) is not None, ""
        if not equals or (not is_version and key not in known):
            keys = f"{', '.join(known)} or v and a version's number, such as v0"
            why = f"part {number} after the # is not KEY=NAME, where a KEY is {keys}"
            why += did_you_mean(key, known)
        # In Qdrant a vector may have no name.
        elif not name and not (is_version and known[0] == "collection"):
            why = f"no name stands after {key}="
        elif key in names:
            why = f"{key}= is in it twice"
        elif _NO_ESCAPE.search(name) or set("\0\ufffd") & set(unquote(name)):
            why = f"a % in the name after {key}= begins no escape of UTF-8; a % itself is %25"
        if why:
            raise wrong_address(why, form)
        names[key] = name if key == "filter" else unquote(name)
    vectors = {int(key[1:]): name for key, name in names.items() if _VERSION.fullmatch(key)}
    if known[0] not in names or not vectors:
        missing = f"{known[0]}=" if known[0] not in names else "v0=, or of another version,"
        raise wrong_address(f"{missing} is missing after the #", form)
    if len(set(vectors.values())) < len(vectors):
        raise DataError("Two versions are said to be in one column; each has a column of its own.")
    # Without spaces, so that a service finds the whole address in an error, and leaves it out.
    fragment = "&".join(
        f"{key}={quote(name, safe=',%' if key == 'filter' else '')}" for key, name in names.items()
    )
    return AdoptedNames(
        table=names[known[0]],
        schema=names.get("schema"),
        id=names.get("id"),
        vectors=dict(sorted(vectors.items())),
        filters=tuple(unquote(one) for one in names.get("filter", "").split(",") if one),
        fragment=fragment,
    )


def canonical_uuids(texts: Sequence[str]) -> list[str]:
    """Return those of some texts that are UUIDs as they are usually written, in lower case."""
    known = []
    for text in texts:
        with suppress(ValueError):
            known += [text] if str(uuid.UUID(text)) == text else []
    return known
