"""A store in one SQLite file.

Its tables are `NAME_record`, and `NAME_v3` for version 3, whose vectors are what the extension
sqlite-vec reads.

All rows are compared in each search, so it is exact; SQLite's transactions keep an id in one space.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.store import (
    Checks,
    Floats,
    ReadableStore,
    Rows,
    Space,
    best_of,
    errors_as_store_errors,
    no_store,
    not_ours,
    products,
    was_closed,
)
from evergram.stores.table_per_version import TablePerVersionStore

try:
    import apsw
except ImportError as error:
    raise DataError("A store in SQLite needs apsw: pip install 'evergram[sqlite]'.") from error

T = TypeVar("T")

WAIT = 60.0  # seconds, for another process that writes
# Connections that wait for the next call; each reader at the same moment needs one.
IDLE = 8
# Rows that a search compares at once.
BLOCK = 8_192


class SqliteStore(TablePerVersionStore):
    kind: ClassVar[str] = "sqlite"
    two_steps: ClassVar[bool] = False

    # The connection that a view of one moment has; None where each call borrows one.
    _connection: apsw.Connection | None = None

    def __init__(self, place: str, name: str, create: str | None) -> None:
        super().__init__(place, name, create)
        # Readers do not wait for writers where these write into a log (WAL), which a copy of a file
        # may lack. It changes the file, so only one that is known to hold a store.
        until = time.monotonic() + WAIT
        with self._lent() as connection, self._errors():
            while connection.pragma("journal_mode") != "wal":
                # SQLite does not wait by itself here, where two change it at once.
                try:
                    connection.pragma("journal_mode", "wal")
                    break
                except apsw.BusyError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.05)

    def _connect(self, create: bool) -> None:
        self._path = Path(self._place).absolute()
        self._closed = False
        self._idle: list[apsw.Connection] = []
        self._flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        if create:
            with self._errors():
                self._path.parent.mkdir(parents=True, exist_ok=True)
        elif not self._path.exists():
            raise no_store(self.address)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise every error of SQLite as a StoreError."""
        todo = (
            "see that it is an SQLite file that may be read and written, with its folder, and that "
            "the disk has room; or restore it from a copy"
        )
        with errors_as_store_errors(self.address, todo):
            try:
                yield
            except apsw.BusyError:
                raise StoreError(
                    f"Another process has been writing {self.address} for {WAIT:.0f} s; try again "
                    "later."
                ) from None

    @contextmanager
    def _lent(self) -> Iterator[apsw.Connection]:
        if self._closed:
            raise was_closed(self.address)
        try:
            connection = self._idle.pop()
        except IndexError:
            with self._errors():
                connection = apsw.Connection(str(self._path), flags=self._flags)
                connection.set_busy_timeout(round(WAIT * 1000))
                # A commit is on the disk when it returns, whatever this SQLite was built to do.
                connection.execute("pragma synchronous = full")
        try:
            yield connection
        finally:
            self._idle.append(connection)
            self._close_surplus()

    @contextmanager
    def _view(self, begin: str = "begin") -> Iterator[Self]:
        """Yield a view with a transaction: one that sees the file as it is now, and only that, or,
        with "begin immediate", the one that writes; it is whole, and on the disk, when the block
        ends, or undone where it raises."""
        if self._connection is not None:
            yield self
            return
        with self._lent() as connection:
            try:
                with self._errors():
                    connection.execute(begin)
                    # The first question fixes the moment.
                    connection.execute("select 1 from sqlite_master limit 1").fetchall()
                view = copy(self)
                view._connection = connection
                yield view
                with self._errors():
                    connection.execute("commit")
            finally:
                # SQLite has itself ended a transaction that a full disk broke, say.
                if connection.in_transaction:
                    with self._errors():
                        connection.execute("rollback")

    def close(self) -> None:
        self._closed = True
        self._close_surplus()

    def _close_surplus(self) -> None:
        while len(self._idle) > (0 if self._closed else IDLE):
            # What was written is on the disk already; the last one to leave only tidies up the log.
            with suppress(apsw.Error, IndexError):
                self._idle.pop().close()

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        with self._view() as view:
            return work(view)

    def build_index(self) -> list[int]:
        """Build nothing: every search compares all rows."""
        return []

    def filled(self) -> dict[int, Space]:
        # To count is to look at every page.
        with self._view() as view:
            spaces, query = view.spaces(), "select 1 from {} limit 1"
            return {v: spaces[v] for v in spaces if view._ask(query.format(view._table(v)))}

    def count(self) -> dict[int, int]:
        with self._view() as view:
            return super(SqliteStore, view).count()

    def _count(self, version: int) -> int:
        ((count,),) = self._ask(f"select count(*) from {self._table(version)}")
        return int(count)

    def _writing(self) -> AbstractContextManager[Self]:
        return self._view("begin immediate")

    def _load(self) -> Mapping[str, Any] | None:
        table = f"{self._name}_record"
        if not self._has_table(table):
            return None
        if self._ask("select name from pragma_table_info(?)", table) != [("record",)]:
            raise not_ours(f"table {table}", self.address)
        rows = self._ask(f'select record from "{table}"')
        return dict(json.loads(rows[0][0]))

    def _save(self, record: dict[str, Any]) -> None:
        if not self._has_table(f"{self._name}_record"):
            query = "select name from sqlite_master where lower(name) glob lower(?) || '_v[0-9]*'"
            for (theirs,) in self._ask(query, self._name):
                raise not_ours(f"table {theirs}", self.address)
        table = f'"{self._name}_record"'
        self._ask(f"create table if not exists {table} (record text)")
        self._ask(f"delete from {table}")
        self._ask(f"insert into {table} values (?)", json.dumps(record))

    def _make_table(self, space: Space) -> None:
        table = f"{self._name}_v{space.version}"
        if self._has_table(table):
            raise not_ours(f"table {table}", self.address)
        # Pages of rows are read in the order of the rowid, in which they lie in the file; that of a
        # text id is a column, as a VACUUM would else change it.
        number = pa.types.is_integer(self.id_type)
        keys = "id integer primary key" if number else "place integer primary key, id text unique"
        self._ask(f'create table "{table}" ({keys}, vector blob, checksum integer)')

    def _has_table(self, table: str) -> bool:
        query = "select 1 from sqlite_master where lower(name) = lower(?)"
        return bool(self._ask(query, table))

    def _put(self, rows: Rows, checks: Checks) -> None:
        raw = [vector.tobytes() for vector in rows.vectors.astype("<f4", copy=False)]
        self._ask_each(
            f"insert into {self._table(rows.version)} (id, vector, checksum) values (?, ?, ?)"
            " on conflict (id) do update set vector = excluded.vector,"
            " checksum = excluded.checksum",
            zip(rows.ids.to_pylist(), raw, checks.tolist(), strict=True),
        )

    def _remove(self, version: int, ids: pa.Array) -> None:
        query = f"delete from {self._table(version)} where id = ?"
        self._ask_each(query, zip(ids.to_pylist(), strict=True))

    def _get(self, version: int, ids: pa.Array) -> Iterator[tuple[Rows, Checks]]:
        query = f"select id, vector, checksum from {self._table(version)} where id = ?"
        cells = self._ask_each(query, zip(ids.to_pylist(), strict=True))
        if cells:
            yield self._block(version, cells)

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        with self._view() as view:
            return super(SqliteStore, view)._read(ids)

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        # Page by page: no transaction stays open, in which the log of writes would only grow.
        query = f"select id, vector, checksum, rowid from {self._table(version)}"
        after, last = "", list[int]()
        while cells := self._ask(f"{query}{after} order by rowid limit ?", *last, size):
            if last and cells[-1][3] <= last[0]:
                raise StoreError(
                    f"{self.address} has rows out of their order: its file is damaged; restore it "
                    "from a copy."
                )
            yield self._block(version, cells)
            after, last = " where rowid > ?", [cells[-1][3]]

    def _best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        with self._view() as view:
            if ids is not None:
                return view._best_among(version, queries, k, ids)
            blocks = view._scan(version, BLOCK)
            scored = ((rows.ids, products(queries, rows.vectors)) for rows, _ in blocks)
            best = best_of(len(queries), k, scored, self.id_type)
            # The best are read again, and compared with their checksums.
            return [
                view._best_among(version, query[None], k, found)[0]
                for query, (found, _) in zip(queries, best, strict=True)
            ]

    def _block(self, version: int, cells: list[Any]) -> tuple[Rows, Checks]:
        with self._errors():
            keys, raw, checks, *_ = zip(*cells, strict=True)
            if len({len(one) for one in raw}) > 1:
                raise IntegrityError(f"Rows of version {version} in {self.address} differ in dim.")
            vectors = np.frombuffer(b"".join(raw), dtype="<f4").reshape(len(raw), -1)
            rows = Rows(version, pa.array(keys, self.id_type), vectors.astype(np.float32))
            return rows, np.array(checks, dtype=np.int64).astype(np.uint32)

    def _table(self, version: int) -> str:
        return f'"{self._name}_v{version}"'

    def _ask(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query. Raises: StoreError."""
        return self._ask_each(query, [values])

    def _ask_each(self, query: str, several: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Return the rows of a query that is asked with each of several values."""
        with self._view() as view, self._errors():
            assert view._connection is not None
            return list(view._connection.executemany(query, several))
