"""A store in one SQLite file, whose rows the extension sqlite-vec compares.

Its tables are `NAME_record`, `NAME_spaces`, and `NAME_v3` for version 3.

All rows are compared in each search, so it is exact; SQLite's transactions keep an id in one space.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.errors import DataError, FormatError, IntegrityError, StoreError
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.rows import ID_TYPES, Checks, Floats, Rows, Space
from evergram.stores.store import (
    Store,
    StoreView,
    checked_name,
    errors_as_store_errors,
    no_store,
    not_ours,
    other_id_type,
    was_closed,
)

if TYPE_CHECKING:
    from apsw import Connection

WAIT = 60.0  # seconds, for another process that writes
# Connections that wait for the next call; each reader at the same moment needs one.
IDLE = 8


class SqliteFile:
    """The connections of one store.

    They come from apsw, which brings an SQLite of its own: Python's may be built without loadable
    extensions, and is then of no use here.

    Args:
        path: of the file.
        shown: how errors name the store.
        create: make the file where it is not there.
    Raises: DataError: there is no such file; apsw or sqlite-vec is not installed. StoreError: it
        cannot be opened.
    """

    def __init__(self, path: Path, shown: str, create: bool) -> None:
        self._apsw, self._extension = _clients()
        self._path = path.absolute()
        self._shown = shown
        self._closed = False
        self._idle: list[Connection] = []
        self._guard = threading.Lock()
        if create:
            with self.errors_as_store_errors():
                self._path.parent.mkdir(parents=True, exist_ok=True)
        elif not self._path.exists():
            raise no_store(shown)
        flags = self._apsw.SQLITE_OPEN_READWRITE
        self._flags = flags | (self._apsw.SQLITE_OPEN_CREATE if create else 0)
        with self.reading():  # a file of something else is an error here
            pass

    @contextmanager
    def moment(self) -> Iterator[Connection]:
        """Lend a connection with a transaction that sees the file as it is now, and only that.

        Errors of the block are its own: ask in `errors_as_store_errors`.
        """
        with self._lent() as connection:
            with self.errors_as_store_errors():
                connection.execute("begin")
                # The first question fixes the moment.
                connection.execute("select 1 from sqlite_master limit 1").fetchall()
            try:
                yield connection
            finally:
                self._roll_back(connection)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """As `moment`. Raises: StoreError: anything that the block raises."""
        with self.moment() as connection, self.errors_as_store_errors():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Lend a connection with the one transaction that writes; whole, and on the disk, when the
        block ends, or undone where it raises. Another writer is waited for.

        Raises: StoreError: anything that the block raises.
        """
        with self._lent() as connection, self.errors_as_store_errors():
            connection.execute("begin immediate")
            try:
                yield connection
                connection.execute("commit")
            finally:
                self._roll_back(connection)

    def log_ahead(self) -> None:
        """Have the file write into a log (WAL), for good, so that readers do not wait for writers.

        It changes the file, so call it once it is known to hold a store, or may.
        """
        until = time.monotonic() + WAIT
        while True:
            try:
                with self._lent() as connection:
                    if connection.pragma("journal_mode") != "wal":
                        connection.pragma("journal_mode", "wal")
                return
            except self._apsw.BusyError as error:
                # SQLite does not wait by itself here, where two change it at once.
                if time.monotonic() > until:
                    with self.errors_as_store_errors():
                        raise error
                time.sleep(0.05)
            except self._apsw.Error as error:
                with self.errors_as_store_errors():
                    raise error

    def close(self) -> None:
        """Let go of the file; closing twice is no error."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            self._drop(connection)

    @contextmanager
    def errors_as_store_errors(self) -> Iterator[None]:
        """Raise every error of SQLite as a StoreError."""
        todo = (
            "see that it is an SQLite file that may be read and written, with its folder, and that "
            "the disk has room; or restore it from a copy"
        )
        with errors_as_store_errors(self._shown, todo):
            try:
                yield
            except self._apsw.BusyError:
                raise StoreError(
                    f"Another process has been writing {self._shown} for {WAIT:.0f} s; try again "
                    "later."
                ) from None

    @contextmanager
    def _lent(self) -> Iterator[Connection]:
        with self._guard:
            if self._closed:
                raise was_closed(self._shown)
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            with self.errors_as_store_errors():
                connection = self._connected()
        try:
            yield connection
        finally:
            with self._guard:
                kept = not self._closed and len(self._idle) < IDLE
                if kept:
                    self._idle.append(connection)
            if not kept:
                self._drop(connection)

    def _connected(self) -> Connection:
        try:
            connection: Connection = self._apsw.Connection(str(self._path), flags=self._flags)
        except self._apsw.CantOpenError:
            # SQLite does not say why; the system does.
            with self._path.open("r+b" if self._path.exists() else "xb"):
                raise
        try:
            connection.enable_load_extension(True)
            connection.load_extension(self._extension)
            connection.enable_load_extension(False)
            connection.set_busy_timeout(round(WAIT * 1000))
            # A commit is on the disk when it returns, whatever this SQLite was built to do.
            connection.execute("pragma synchronous = full")
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop(self, connection: Connection) -> None:
        # What was written is on the disk already; the last one to leave only tidies up the log.
        with suppress(self._apsw.Error):
            connection.close()

    def _roll_back(self, connection: Connection) -> None:
        # SQLite has itself ended a transaction that a full disk broke, say.
        if connection.in_transaction:
            with self.errors_as_store_errors():
                connection.execute("rollback")


def _clients() -> tuple[Any, str]:
    """Return the module apsw, and the path of sqlite-vec's extension."""
    try:
        import apsw
        import sqlite_vec
    except ImportError:
        raise DataError(
            "A store in SQLite needs apsw and sqlite-vec: pip install 'evergram[sqlite]'."
        ) from None
    if not hasattr(apsw.Connection, "load_extension"):
        raise DataError(
            "The apsw that is installed was built without loadable extensions, so that it cannot "
            "load sqlite-vec: install a wheel of it, pip install --force-reinstall apsw."
        )
    return apsw, str(sqlite_vec.loadable_path())


if TYPE_CHECKING:
    from apsw import Connection

T = TypeVar("T")

FORMAT = 1

# Of a row whose length is in here, the distances of sqlite-vec neither overflow nor vanish.
SHORTEST, LONGEST = 1e-15, 1e15

# How many a float32 of sqlite-vec may be off, in units of its last place, for each coordinate.
UNIT = 2.0**-23
MORE = 8

RECORD = {"format", "id_type", "side"}

# The best rows by an upper bound of their score with a query of length 1, and with them all rows
# of extreme lengths, which have none. sqlite-vec has no inner product: ⟨q, z⟩ is ‖z‖ cos(q, z).
NEAREST = """
select rows.id, rows.vector, rows.checksum, best.bound from (
  select * from (
    select {key} as key, norm * (coalesce(1 - vec_distance_cosine(vector, ?), 0) + ?) as bound
    from {table} where norm is not null order by bound desc limit ?
  )
  union all select {key}, null from {table} where norm is null
) as best join {table} as rows on rows.{key} = best.key
"""

# So many rows are looked at beyond the k that are asked for, and four times as many each time
# that rounding may hide a better one.
SPARE = 16
LARGEST_LIMIT = 2**62


class SqliteStore(Store):
    kind: ClassVar[str] = "sqlite"

    # The connection that a view of one moment has; None where each call borrows one.
    _moment: Connection | None = None

    def __init__(self, path: Path, name: str, create: str | None) -> None:
        self._path = path
        self._name = name
        self._file = SqliteFile(path, self.address, create is not None)
        try:
            kind = self._begin(create)
        except BaseException:
            self.close()
            raise
        if create is not None and kind != create:
            self.close()
            raise other_id_type(self.address, kind, create)
        self._id_type = ID_TYPES[kind]
        # What pages of rows go by: for integers the id itself.
        self._key = "id" if kind == "int64" else "place"

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`."""
        place, _, name = address.removeprefix("sqlite:").rpartition("#")
        if not place:
            raise DataError(f"{address!r} is not an SQLite store address; give sqlite:FILE#NAME.")
        if checked_name(name).lower().startswith("sqlite_"):
            raise DataError(f"SQLite keeps names such as {name!r} for itself; give another one.")
        return cls(Path(place), name, create)

    @property
    def address(self) -> str:
        return f"sqlite:{self._path}#{self._name}"

    @property
    def place(self) -> str:
        # SQLite takes a and A for the same letter in names of tables.
        return f"sqlite:{self._path.resolve()}#{self._name.lower()}"

    @property
    def id_type(self) -> pa.DataType:
        return self._id_type

    @property
    def side(self) -> str | None:
        with self._reading() as connection:
            record = _read_record(connection, self._name, self.address)
            if record is None:
                raise no_store(self.address)
            return record[1]

    def spaces(self) -> dict[int, Space]:
        with self._reading() as connection:
            return _read_spaces(connection, self._name, self.address)

    def count(self) -> dict[int, int]:
        with self._reading() as connection:
            counts = {
                version: _whole_number(
                    connection.execute(f"select count(*) from {table}").fetchall()[0][0]
                )
                for version, table in self._tables(connection).items()
            }
        return {version: count for version, count in counts.items() if count}

    def filled(self) -> dict[int, Space]:
        # To count is to look at every page.
        with self._reading() as connection:
            spaces = _read_spaces(connection, self._name, self.address)
            return {
                version: space
                for version, space in spaces.items()
                if connection.execute(f"select 1 from {self._table(version)} limit 1").fetchall()
            }

    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        with self._file.moment() as connection:
            view = copy(self)
            view._moment = connection
            return work(view)

    def build_index(self, codes: IndexCodes = FLOAT32) -> list[int]:
        """Build nothing: every search compares all rows.

        Raises: DataError: it is asked for codes.
        """
        if not codes.whole:
            raise DataError(
                f"{self.address} cannot build an index of {codes.kind}: every search compares all "
                "rows, with their whole vectors; leave the codes out, or take another store."
            )
        return []

    def close(self) -> None:
        self._file.close()

    def _begin(self, create: str | None) -> str:
        """Return the type of the ids, of the store that is there or is made."""
        with self._file.reading() as connection:
            record = _read_record(connection, self._name, self.address)
            if record is None and create is not None:
                _refuse_others(connection, self._name, self.address)
        if record is None and create is None:
            raise no_store(self.address)
        self._file.log_ahead()
        if record is None and create is not None:
            with self._file.writing() as connection:
                _create_tables(connection, self._name, create, self.address)
                record = _read_record(connection, self._name, self.address)
        if record is None:
            raise no_store(self.address)
        return record[0]

    def _add_space(self, space: Space) -> None:
        kind = "int64" if pa.types.is_integer(self._id_type) else "string"
        with self._file.writing() as connection:
            _create_space(connection, self._name, kind, space, self.address)

    def _set_side(self, side: str) -> None:
        with self._file.writing() as connection:
            connection.execute(
                f'update "{self._name}_record" set side = ? where side is null', (side,)
            )

    def _write(self, rows: Rows, checks: Checks) -> None:
        ids = rows.ids.to_pylist()
        raw = [vector.tobytes() for vector in rows.vectors.astype("<f4", copy=False)]
        values = zip(ids, raw, _norms(rows.vectors), checks.tolist(), strict=True)
        with self._file.writing() as connection:
            tables = self._tables(connection)
            connection.executemany(
                f"insert into {tables.pop(rows.version)} (id, vector, norm, checksum)"
                " values (?, ?, ?, ?) on conflict (id) do update set vector = excluded.vector,"
                " norm = excluded.norm, checksum = excluded.checksum",
                values,
            )
            self._remove(connection, tables.values(), ids)

    def _delete(self, ids: pa.Array) -> None:
        with self._file.writing() as connection:
            self._remove(connection, self._tables(connection).values(), ids.to_pylist())

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        keys = [(key,) for key in ids.to_pylist()]
        parts = []
        with self._reading() as connection:
            for version, table in self._tables(connection).items():
                query = f"select id, vector, checksum from {table} where id = ?"
                cells = list(connection.executemany(query, keys))
                if cells:
                    parts.append(self._block(version, cells))
        return parts

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        # Page by page: no transaction stays open, in which the log of writes would only grow.
        last: int | None = None
        query = f"select id, vector, checksum, {self._key} from {self._table(version)}"
        while True:
            after = "" if last is None else f" where {self._key} > ?"
            values = (size,) if last is None else (last, size)
            with self._reading() as connection:
                cells = connection.execute(
                    f"{query}{after} order by {self._key} limit ?", values
                ).fetchall()
                block = self._block(version, cells) if cells else None
                before, last = last, _whole_number(cells[-1][3]) if cells else None
                if before is not None and last is not None and last <= before:
                    raise StoreError(
                        f"{self.address} has rows out of their order: its file is damaged; restore "
                        "it from a copy."
                    )
            if block is not None:
                yield block
            if len(cells) < size:
                return

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        with self._reading() as connection:
            if ids is None:
                return [self._best(connection, version, query, k) for query in queries]
            query = f"select id, vector, checksum from {self._table(version)} where id = ?"
            cells = list(connection.executemany(query, [(key,) for key in ids.to_pylist()]))
            return [self._best_of(version, cells, query, k) for query in queries]

    def _best(
        self, connection: Connection, version: int, query: Floats, k: int
    ) -> tuple[pa.Array, Floats]:
        """Return the best rows of one query, by their own scores.

        sqlite-vec's float32 puts rows in order of a bound that no score exceeds; they are looked
        at until the last bound is not above the k-th score.
        """
        length = float(np.linalg.norm(query.astype(np.float64)))
        unit = (query / length if length else query).astype("<f4")
        slack = (len(query) + MORE) * UNIT
        statement = NEAREST.format(table=self._table(version), key=self._key)
        wanted = k + SPARE
        while True:
            limit = min(wanted, LARGEST_LIMIT)
            cells = connection.execute(statement, (unit.tobytes(), slack, limit)).fetchall()
            keys, scores = self._best_of(version, cells, query, k)
            bounds = [bound for *_, bound in cells if isinstance(bound, float)]
            if len(bounds) < limit or scores[-1] >= min(bounds) * length:
                return keys, scores
            wanted *= 4

    def _best_of(
        self, version: int, cells: list[Any], query: Floats, k: int
    ) -> tuple[pa.Array, Floats]:
        """Return the ids [≤k] of the cells with the largest inner products, and the products."""
        if not cells:
            return pa.array([], self._id_type), np.zeros(0, dtype=np.float32)
        rows, checks = self._block(version, cells)
        self._verify(rows, checks)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = rows.vectors @ query
        order = np.argsort(-scores, kind="stable")[:k]
        return rows.ids.take(pa.array(order)), scores[order]

    def _block(self, version: int, cells: list[Any]) -> tuple[Rows, Checks]:
        keys, raw, checks, *_ = zip(*cells, strict=True)
        if len({len(one) for one in raw}) > 1:
            raise IntegrityError(f"Rows of version {version} in {self.address} differ in dim.")
        vectors = np.frombuffer(b"".join(raw), dtype="<f4").reshape(len(raw), -1)
        rows = Rows(version, pa.array(keys, self._id_type), vectors.astype(np.float32))
        return rows, np.array(checks, dtype=np.int64).astype(np.uint32)

    def _remove(self, connection: Connection, tables: Iterable[str], ids: list[Any]) -> None:
        for table in tables:
            connection.executemany(f"delete from {table} where id = ?", [(key,) for key in ids])

    def _tables(self, connection: Connection) -> dict[int, str]:
        """Return the table of rows of each space, as SQL names it."""
        return {
            version: self._table(version)
            for version in _read_spaces(connection, self._name, self.address)
        }

    def _table(self, version: int) -> str:
        return f'"{self._name}_v{version}"'

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        if self._moment is None:
            with self._file.reading() as connection:
                yield connection
        else:
            with self._file.errors_as_store_errors():
                yield self._moment


def _create_tables(connection: Connection, name: str, id_type: str, shown: str) -> None:
    """Make the record of a store unless it is there, in a transaction that writes.

    Raises: StoreError: there are tables by the names that it would use.
    """
    if _has_table(connection, f"{name}_record"):
        return
    _refuse_others(connection, name, shown)
    connection.execute(
        f'create table "{name}_record" (format integer, id_type text, side text);'
        f'create table "{name}_spaces"'
        " (version integer primary key, dim integer, fingerprint text)"
    )
    connection.execute(f'insert into "{name}_record" values (?, ?, null)', (FORMAT, id_type))


def _refuse_others(connection: Connection, name: str, shown: str) -> None:
    """Refuse a new store whose tables are there already: they are somebody's own.

    Raises: StoreError.
    """
    theirs = connection.execute(
        "select name from sqlite_master where lower(name) = lower(?)"
        " or lower(name) glob lower(?) || '_v[0-9]*'",
        (f"{name}_spaces", name),
    ).fetchall()
    if theirs:
        raise not_ours(f"table {theirs[0][0]}", shown)


def _create_space(
    connection: Connection, name: str, id_type: str, space: Space, shown: str
) -> None:
    """Make the table of a space, in a transaction that writes, unless the space is there.

    Raises: StoreError: there is a table of its name.
    """
    spaces = f'"{name}_spaces"'
    there = connection.execute(f"select 1 from {spaces} where version = ?", (space.version,))
    if there.fetchall():
        return
    table = f"{name}_v{space.version}"
    if _has_table(connection, table):
        raise not_ours(f"table {table}", shown)
    # A text is beside a number that no VACUUM changes, so that pages of rows can go by it.
    number = id_type == "int64"
    keys = "id integer primary key" if number else "place integer primary key, id text unique"
    connection.execute(
        f'create table "{table}" ({keys}, vector blob, norm real, checksum integer);'
        f'create index "{table}_extreme" on "{table}" (norm) where norm is null'
    )
    values = (space.version, space.dim, space.fingerprint)
    connection.execute(f"insert into {spaces} values (?, ?, ?)", values)


def _read_record(connection: Connection, name: str, shown: str) -> tuple[str, str | None] | None:
    """Return the type of a store's ids, and its side; None if there is no such store.

    Raises: FormatError: it is of a later format. StoreError: it is something else, or damaged.
    """
    table = f"{name}_record"
    if not _has_table(connection, table):
        return None
    columns = {
        row[0] for row in connection.execute("select name from pragma_table_info(?)", (table,))
    }
    if columns != RECORD:
        raise not_ours(f"table {table}", shown)
    rows = connection.execute(f'select format, id_type, side from "{table}"').fetchall()
    number, id_type, side = rows[0] if len(rows) == 1 else (None, None, None)
    if isinstance(number, int) and number > FORMAT:
        raise FormatError(
            f"{shown} has format {number}; this Evergram reads {FORMAT}: use a later Evergram."
        )
    known = number == FORMAT and id_type in ID_TYPES
    if not known or not (side is None or isinstance(side, str)):
        raise StoreError(f"The record of {shown} is damaged; restore the file from a copy.")
    return str(id_type), side


def _read_spaces(connection: Connection, name: str, shown: str) -> dict[int, Space]:
    """Return a store's spaces by version, ascending. Raises: StoreError: one is damaged."""
    rows = connection.execute(
        f'select version, dim, fingerprint from "{name}_spaces" order by version'
    )
    spaces = {}
    for version, dim, fingerprint in rows:
        if not (isinstance(version, int) and isinstance(dim, int) and isinstance(fingerprint, str)):
            raise StoreError(f"A space of {shown} is damaged; restore the file from a copy.")
        spaces[version] = Space(version, dim, fingerprint)
    return spaces


def _has_table(connection: Connection, table: str) -> bool:
    """Return whether there is a table; SQLite takes a and A for the same letter."""
    rows = connection.execute(
        "select 1 from sqlite_master where lower(name) = lower(?)", (table,)
    ).fetchall()
    return bool(rows)


def _norms(vectors: Floats) -> list[float | None]:
    """Return the lengths [n] of vectors [n, D]; None for one that is not 0 and too short or too
    long for sqlite-vec's distances."""
    lengths: npt.NDArray[np.float64] = np.linalg.norm(vectors.astype(np.float64), axis=1)
    usual = (lengths == 0) | ((lengths >= SHORTEST) & (lengths <= LONGEST))
    return [float(n) if ok else None for n, ok in zip(lengths, usual, strict=True)]


def _whole_number(cell: object) -> int:
    """Return the whole number in a cell. Raises: TypeError: it is damaged, and is none."""
    if not isinstance(cell, int):
        raise TypeError(f"a number is {type(cell).__name__}")
    return cell
