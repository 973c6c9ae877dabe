"""Tables and collections of one's own, read where they are: one reader, and a driver a database."""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.filters import Filter
from evergram.stores.rows import Checks, Floats, Hits, Rows, Space, best_by
from evergram.stores.store import ReadableStore, StoreView, was_closed

T = TypeVar("T")

# A row of one's own has no checksum.
NO_CHECKS: Checks = np.zeros(0, dtype=np.uint32)
# Rows that are read at once.
BLOCK = 8_192
_VERSION = re.compile(r"v(0|[1-9][0-9]{0,8})")
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True)
class TableFacts:
    """What a database says of a table now.

    Args:
        id_type: int64 or string.
        dims: version to the dim of its vectors; None where nothing says it yet.
    """

    id_type: pa.DataType
    dims: dict[int, int | None]


class TableDriver(ABC):
    """How the tables of one database are read.

    A row belongs to the newest version whose vector it has; one without an id is none. `chosen` is
    what `filter_of` has returned, or None.

    Args:
        shown: the address without a password.
        names: of the columns.
    """

    form: ClassVar[str]

    def __init__(self, shown: str, names: AdoptedNames) -> None:
        self.shown, self.names = shown, names
        self.closed = False

    @classmethod
    @abstractmethod
    def parse(cls, address: str) -> tuple[Any, ...]:
        """Return the arguments of the constructor. Raises: DataError: the address is wrong."""

    @property
    @abstractmethod
    def arguments(self) -> tuple[Any, ...]:
        """Those of the constructor, by which another process opens the same."""

    @property
    def place(self) -> str:
        """The address independent of the current folder."""
        return self.shown

    @abstractmethod
    def facts(self) -> TableFacts:
        """Return what the table is like now. Raises: DataError: it is not there. StoreError: it
        lacks a column, or has one of another type than it may have."""

    @abstractmethod
    def refuse_twice(self) -> None:
        """Raises: StoreError: an id is in the table twice."""

    @abstractmethod
    def filter_of(self, asked: Filter) -> Any:
        """Return a filter in the database's own terms. Raises: DataError: it is wrong."""

    @abstractmethod
    def rows(
        self, version: int, ids: pa.Array | None, chosen: Any, size: int, *, own: bool = True
    ) -> Iterator[Rows]:
        """Yield rows of a version, of some ids or of all, in blocks of about `size` at most.

        Args:
            own: whether to leave out rows that have a newer version's vector as well.
        """

    @abstractmethod
    def count(self, version: int, chosen: Any) -> int: ...

    @abstractmethod
    def has_rows(self, version: int, chosen: Any) -> bool: ...

    @abstractmethod
    def at_one_moment(self, work: Callable[[Self], T]) -> T:
        """Return what `work` returns for a driver that sees the table as it is at one moment."""

    @abstractmethod
    def close(self) -> None: ...

    # A driver may override these.

    def computes(self, metric: str, version: int) -> bool:
        """Return whether `nearest` knows a metric; rows are read and compared if it does not."""
        return True

    def nearest(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None, chosen: Any
    ) -> list[Hits] | None:
        """Return for each query of [Q, D] the k best rows, all compared by the database; None where
        they are to be read and compared here."""
        return None

    def state(self) -> object:
        """Return what changes with every write to the table, if that can be told at a glance."""
        return None

    def remark(self, version: int) -> str:
        """Return a sentence, with a space before it, on why a version's vectors may differ from the
        published ones; "" if there is nothing to say."""
        return ""


class AdoptedStore(ReadableStore):
    """A table that Evergram only reads, through a driver.

    Its rows have no norms, checksums or fingerprints. `retrieval` sets `check`, which is called
    with a version before the first of its rows is returned, and raises if they are not that
    version's. Every search compares all rows.
    """

    driver: ClassVar[type[TableDriver]]

    def __init__(self, *arguments: Any) -> None:
        self._driver = self.driver(*arguments)
        self._chosen: Any = None
        self._check: Callable[[int], None] | None = None
        # Shared by all views: the versions that were checked, and the state they were checked in.
        self._checked: set[int] = set()
        self._compared: list[object] = []
        try:
            self._id_type = self._driver.facts().id_type
            self._driver.refuse_twice()
            self._compared.append(self._driver.state())
        except BaseException:
            self._driver.close()
            raise

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`. Raises: StoreError: it shall be created, and so written."""
        arguments = cls.driver.parse(address)
        if create is not None:
            raise read_only(f"A {cls.kind}")
        return cls(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._driver.arguments

    @property
    def address(self) -> str:
        return self._driver.shown

    @property
    def place(self) -> str:
        return self._driver.place

    @property
    def id_type(self) -> pa.DataType:
        return self._id_type

    @property
    def side(self) -> str | None:
        """None: what it holds is proved by comparing rows, and nothing is recorded."""
        return None

    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        def with_driver(driver: TableDriver) -> T:
            view = copy(self)
            view._driver = driver
            return work(view)

        return self._now().at_one_moment(with_driver)

    def where(self, conditions: Filter) -> Self:
        view = copy(self)
        view._chosen = self._now().filter_of(conditions)
        return view

    def spaces(self) -> dict[int, Space]:
        facts = self._facts()
        return {version: Space(version, dim, "") for version, dim in facts.dims.items() if dim}

    def filled(self) -> dict[int, Space]:
        spaces = self.spaces()
        return {v: spaces[v] for v in spaces if self._driver.has_rows(v, self._chosen)}

    def count(self) -> dict[int, int]:
        counts = {v: self._driver.count(v, self._chosen) for v in self.spaces()}
        return {version: rows for version, rows in counts.items() if rows}

    def close(self) -> None:
        self._driver.closed = True
        self._driver.close()

    def computes(self, metric: str, version: int) -> bool:
        """Return whether `nearest_by` knows a metric without reading all rows."""
        return self._now().computes(metric, version)

    def remark(self, version: int) -> str:
        """Return a sentence on why a version's vectors may differ from the published ones."""
        return self._now().remark(version)

    def set_check(self, check: Callable[[int], None]) -> None:
        """Have rows of each version checked before the first is returned."""
        self._check = check
        self._checked.clear()

    def require(self, version: int) -> None:
        """Check a version's rows, unless that was done; where a write can be told, again after each
        one: a job of every night may have put another model's vectors into the table.

        Raises: IntegrityError: by the check.
        """
        state = self._now().state()
        if state not in self._compared:
            self._driver.refuse_twice()
            self._checked.clear()
            self._compared[:] = [state]
        if self._check is not None and version not in self._checked:
            self._check(version)
            self._checked.add(version)

    def column_rows(self, version: int, ids: pa.Array | None, size: int) -> Rows:
        """Return at most `size` vectors of a version, of some ids or of any, also of rows that have
        a newer version's vector as well."""
        dim, held = self._facts().dims[version] or 0, 0
        blocks = [Rows(version, pa.array([], self._id_type), np.zeros((0, dim), np.float32))]
        for rows in self._driver.rows(version, ids, None, size, own=False):
            blocks.append(rows)
            held += len(rows)
            if held >= size:
                break
        keys = pa.concat_arrays([rows.ids for rows in blocks])[:size]
        self.refuse_twice_in(keys)
        return Rows(version, keys, np.concatenate([rows.vectors for rows in blocks])[:size])

    def nearest_by(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[Hits]:
        """Return for each query of [Q, D] the k rows of a version that are best by "ip", by
        "cosine" or by "l2", −‖q − z‖², by a comparison with all rows."""
        self.require(version)
        self._facts()
        hits = None
        if self._driver.computes(metric, version):
            hits = self._driver.nearest(metric, version, queries, k, ids, self._chosen)
        if hits is None:
            blocks = self._finite(self._driver.rows(version, ids, self._chosen, BLOCK))
            hits = best_by(metric, queries, k, blocks, version, self._id_type)
        for one in hits:
            self.refuse_twice_in(one.ids)
        return hits

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        return [(h.ids, h.scores) for h in self.nearest_by("ip", version, queries, k, ids)]

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        blocks: list[tuple[Rows, Checks]] = []
        for version in self.spaces():
            mine = [r for r in self._driver.rows(version, ids, self._chosen, BLOCK) if len(r)]
            if mine:
                self.require(version)
                self.refuse_twice_in(pa.concat_arrays([rows.ids for rows in mine]))
            blocks += [(rows, NO_CHECKS) for rows in mine]
        return blocks

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        self.require(version)
        self._facts()
        for rows in self._driver.rows(version, None, self._chosen, size):
            self.refuse_twice_in(rows.ids)
            yield rows, NO_CHECKS

    def refuse_twice_in(self, keys: pa.Array) -> None:
        """Raises: IntegrityError: an id of rows that were read is there twice."""
        if len(pc.unique(keys)) < len(keys):
            raise IntegrityError(f"{self.address} has an id twice; each row needs its own.")

    def _now(self) -> TableDriver:
        if self._driver.closed:
            raise was_closed(self.address)
        return self._driver

    def _facts(self) -> TableFacts:
        """Return the table's facts. Raises: StoreError: its owner has given the ids another type
        since it was opened."""
        facts = self._now().facts()
        if facts.id_type != self._id_type:
            words = {pa.int64(): "whole numbers", pa.string(): "texts"}
            raise StoreError(
                f"The ids of {self.address} are {words[facts.id_type]} now, and were "
                f"{words[self._id_type]} when it was opened; open it again."
            )
        return facts

    def _finite(self, blocks: Iterator[Rows]) -> Iterator[Rows]:
        for rows in blocks:
            self._verify(rows, NO_CHECKS)
            yield rows

    def _verify(self, rows: Rows, checks: Checks) -> None:
        bad = np.flatnonzero(~np.isfinite(rows.vectors).all(axis=1))
        if len(bad):
            raise IntegrityError(
                f"The vector of id {rows.ids[bad[0]]} in {self.address} is not finite; correct it."
            )


def id_twice(shown: str, key: object) -> StoreError:
    return StoreError(
        f"{shown} has the id {key!r} twice; the ids must have each once: name others by id=COLUMN."
    )


def no_column(shown: str, column: str, use: str, columns: list[str]) -> StoreError:
    return StoreError(
        f"{shown} names the column {column!r} {use}, which the table does not have; it has "
        f"{', '.join(sorted(columns))}."
    )


def wrong_column(shown: str, column: str, kind: object, allowed: str) -> StoreError:
    return StoreError(f"The column {column!r} of {shown} is of type {kind}; it must be {allowed}.")


def read_only(shown: str) -> StoreError:
    """Return the error for writing to a table or a collection of one's own."""
    return StoreError(
        f"{shown} is a table or a collection of your own, which Evergram only reads. Write new "
        "vectors to it by your own program, into a column (in Qdrant: a named vector) of their "
        "version, or fill a store of Evergram's: 'evergram store fill' with an address such as "
        "snapshot:DIR."
    )


@dataclass(frozen=True)
class AdoptedNames:
    """The names after the # of an address.

    Args:
        others: those of one kind of store alone, such as "table".
        id: where the ids are; None if the address does not say.
        vectors: version to the column, or the named vector, that holds its vectors.
        filters: columns or fields that filters may name.
        fragment: all of it again, as an address writes it.
    """

    others: dict[str, str]
    id: str | None
    vectors: dict[int, str]
    filters: tuple[str, ...]
    fragment: str


def split_address(address: str, form: str) -> tuple[str, str]:
    """Return what stands before the # of an address without its scheme, and what stands after it.

    Raises: DataError: one of them is missing.
    """
    place, hash_sign, rest = address.rpartition("#")
    if not hash_sign:
        raise wrong_address("there is no # in it, after which the names stand", form)
    if not place:
        raise wrong_address("nothing stands before the #, where the place of the data is", form)
    return place, rest


def wrong_address(why: str, form: str) -> DataError:
    """Return the error for an address that is wrong.

    Args:
        why: which part of it, in a clause that repeats no part, as a password may be in it.
        form: of the whole address.
    """
    return DataError(f"The address of a store is wrong: {why}. A table of your own is {form}.")


def read_names(
    rest: str, required: str, form: str, optional: Sequence[str] = (), *, unnamed: bool = False
) -> AdoptedNames:
    """Parse `table=TABLE&id=COLUMN&v0=COLUMN&filter=COLUMN,COLUMN`.

    Args:
        rest: what stands after the #.
        required: the key that must be there, such as "table".
        form: of the whole address, for the error.
        optional: further keys.
        unnamed: whether a version may be in a vector without a name, `v0=`.
    Raises: DataError: it is wrong; no name in it is repeated, as a password may be among them.
    """
    names: dict[str, str] = {}
    known = (required, "id", *optional, "filter")
    for number, part in enumerate(rest.split("&"), start=1):
        key, equals, name = part.partition("=")
        is_version, why = _VERSION.fullmatch(key) is not None, ""
        if not equals or (not is_version and key not in known):
            keys = f"{', '.join(known)} or v and a version's number, such as v0"
            why = f"part {number} after the # is not KEY=NAME, where a KEY is {keys}"
            why += did_you_mean(key, known)
        elif not name and not (unnamed and is_version):
            why = f"no name stands after {key}="
        elif key in names:
            why = f"{key}= is in it twice"
        elif _NO_ESCAPE.search(name) or set("\0\ufffd") & set(unquote(name)):
            why = f"a % in the name after {key}= begins no escape of UTF-8; a % itself is %25"
        if why:
            raise wrong_address(why, form)
        names[key] = name if key == "filter" else unquote(name)
    vectors = {int(key[1:]): name for key, name in names.items() if _VERSION.fullmatch(key)}
    if required not in names or not vectors:
        missing = f"{required}=" if required not in names else "v0=, or of another version,"
        raise wrong_address(f"{missing} is missing after the #", form)
    if len(set(vectors.values())) < len(vectors):
        raise DataError("Two versions are said to be in one column; each has a column of its own.")
    # Without spaces, so that a service finds the whole address in an error, and leaves it out.
    fragment = "&".join(
        f"{key}={quote(name, safe=',%' if key == 'filter' else '')}" for key, name in names.items()
    )
    return AdoptedNames(
        others={key: name for key, name in names.items() if key in (required, *optional)},
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
