"""A store in one SQLite file.

Its tables are `NAME_record` and, for version 3, `NAME_v3`, with vectors in the format of the
extension sqlite-vec. Searches compare all rows, so they are exact. Transactions keep each id in
one space.
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

WAIT = 60.0  # seconds to wait for another process that writes
IDLE = 8  # maximum number of idle connections; each concurrent reader needs one
BLOCK = 8_192  # rows compared at once in a search


class SqliteStore(TablePerVersionStore):
    kind: ClassVar[str] = "sqlite"
    two_steps: ClassVar[bool] = False

    # A view's connection; None if each call borrows one.
    _connection: apsw.Connection | None = None

    def __init__(self, place: str, name: str, create: str | None) -> None:
        super().__init__(place, name, create)
        # In WAL mode, readers do not wait for writers. A copied file may have another mode. Setting
        # it changes the file, so do it only now that the file is known to be a store.
        until = time.monotonic() + WAIT
        with self._lent() as connection, self._errors():
            while connection.pragma("journal_mode") != "wal":
                # SQLite's busy timeout does not apply here, so retry.
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
            "check that it is an SQLite file, that it and its folder are readable and writable, "
            "and that the disk has space; or restore it from a copy"
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
                # Make commits durable, whatever the default of this SQLite build is.
                connection.execute("pragma synchronous = full")
        try:
            yield connection
        finally:
            self._idle.append(connection)
            self._close_surplus()

    @contextmanager
    def _view(self, begin: str = "begin") -> Iterator[Self]:
        """Yield a view in a transaction: a read transaction that sees the file as it is now or,
        with "begin immediate", a write transaction. It is committed durably when the block ends,
        and rolled back if the block raises."""
        if self._connection is not None:
            yield self
            return
        with self._lent() as connection:
            try:
                with self._errors():
                    connection.execute(begin)
                    # SQLite takes the snapshot at the first query.
                    connection.execute("select 1 from sqlite_master limit 1").fetchall()
                view = copy(self)
                view._connection = connection
                yield view
                with self._errors():
                    connection.execute("commit")
            finally:
                # SQLite may already have rolled back, for example if the disk is full.
                if connection.in_transaction:
                    with self._errors():
                        connection.execute("rollback")

    def close(self) -> None:
        self._closed = True
        self._close_surplus()

    def _close_surplus(self) -> None:
        while len(self._idle) > (0 if self._closed else IDLE):
            # Errors do not matter: all commits are on disk, and closing only cleans up the WAL.
            with suppress(apsw.Error, IndexError):
                self._idle.pop().close()

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        with self._view() as view:
            return work(view)

    def build_index(self) -> list[int]:
        """Do nothing: every search compares all rows."""
        return []

    def filled(self) -> dict[int, Space]:
        # Do not count the rows, which would read every page.
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
            for (foreign_table,) in self._ask(query, self._name):
                raise not_ours(f"table {foreign_table}", self.address)
        table = f'"{self._name}_record"'
        self._ask(f"create table if not exists {table} (record text)")
        self._ask(f"delete from {table}")
        self._ask(f"insert into {table} values (?)", json.dumps(record))

    def _make_table(self, space: Space) -> None:
        table = f"{self._name}_v{space.version}"
        if self._has_table(table):
            raise not_ours(f"table {table}", self.address)
        # `_scan` reads rows in the order of the rowid, which is their order in the file. For text
        # ids the rowid is an explicit column, because a VACUUM could otherwise change it.
        is_number = pa.types.is_integer(self.id_type)
        number_key, text_key = "id integer primary key", "place integer primary key, id text unique"
        keys = number_key if is_number else text_key
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
        # Read page by page: during a long transaction, the WAL could not be checkpointed.
        query = f"select id, vector, checksum, rowid from {self._table(version)}"
        after, last = "", list[int]()
        while cells := self._ask(f"{query}{after} order by rowid limit ?", *last, size):
            if last and cells[-1][3] <= last[0]:
                raise StoreError(
                    f"{self.address} has rows out of order: its file is damaged; restore it from a "
                    "copy."
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
            # Read the best rows again, to verify their checksums.
            return [
                view._best_among(version, query[None], k, found)[0]
                for query, (found, _) in zip(queries, best, strict=True)
            ]

    def _block(self, version: int, cells: list[Any]) -> tuple[Rows, Checks]:
        with self._errors():
            keys, raw, checks, *_ = zip(*cells, strict=True)
            if len({len(vector) for vector in raw}) > 1:
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
        """Return the rows of a query that is executed once for each tuple of values."""
        with self._view() as view, self._errors():
            assert view._connection is not None
            return list(view._connection.executemany(query, several))
