"""The connections of a store to its SQLite file, each with the extension sqlite-vec."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergram.errors import DataError, EvergramError, StoreError
from evergram.stores.store import no_store, was_closed
from evergram.system_errors import reason_and_remedy

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
        try:
            yield
        except EvergramError:
            raise
        except self._apsw.BusyError:
            raise StoreError(
                f"Another process has been writing {self._shown} for {WAIT:.0f} s; try again later."
            ) from None
        except OSError as error:
            raise StoreError(
                f"{self._shown} cannot be read or written: {reason_and_remedy(error)}."
            ) from error
        except Exception as error:
            sentence = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
            raise StoreError(
                f"{self._shown} cannot be read or written: {sentence}; see that it is an SQLite "
                "file that may be read and written, with its folder, and that the disk has room; "
                "or restore it from a copy."
            ) from error

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
