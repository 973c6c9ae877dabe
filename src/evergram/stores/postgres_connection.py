"""Connections to a PostgreSQL server that may be restarted at any moment.

psycopg_pool connects in the background and only logs why it could not: a caller waits for the whole
timeout, where the pool below fails at once with the server's words about a wrong password or a
refused connection. It has four threads, and a round trip takes 45 µs in place of 22 µs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.rows import Floats, Rows
from evergram.stores.store import checked_name, was_closed

try:
    import psycopg
    from psycopg import conninfo
    from psycopg.adapt import Dumper
    from psycopg.pq import Format
    from psycopg.sql import SQL, Composable
except ImportError as error:
    raise DataError(
        "A store in PostgreSQL needs psycopg: pip install 'evergram[pgvector]'."
    ) from error

# psycopg converts a parameter and a cell at a time, and knows no vectors: NumPy makes PostgreSQL's
# binary formats of all rows at once.

BIGINT = 20  # the oid of bigint, the same in every PostgreSQL


class Raw:
    """A parameter in binary format; a cast in the query says its type."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def layout(dim: int) -> np.dtype[Any]:
    """Return the layout of a vector [D] as `vector_send` writes it."""
    return np.dtype([("dim", ">i2"), ("unused", ">i2"), ("values", ">f4", dim)])


def vector(values: Floats) -> Raw:
    """Return the parameter of a vector [D]."""
    filled = np.zeros(1, dtype=layout(len(values)))
    filled["dim"], filled["values"] = len(values), values
    return Raw(filled.tobytes())


def vectors(values: Floats, oid: int) -> Raw:
    """Return the parameter of an array of vectors [n, D], given the oid of the type vector."""
    dim = values.shape[1]
    items = np.zeros(len(values), dtype=[("bytes", ">i4"), ("item", layout(dim))])
    items["bytes"] = items.dtype["item"].itemsize
    items["item"]["dim"], items["item"]["values"] = dim, values
    return _array(items, oid)


def rows_of(
    shown: str, version: int, keys: Sequence[Any], raw: Sequence[bytes], id_type: pa.DataType
) -> Rows:
    """Return rows, at least one, given their vectors as `vector_send` writes them. Raises:
    IntegrityError: they are not of one length."""
    if len({len(one) for one in raw}) > 1:
        raise IntegrityError(f"Rows of version {version} in {shown} differ in dim.")
    values = np.frombuffer(b"".join(raw), dtype=layout(len(raw[0]) // 4 - 1))["values"]
    return Rows(version, pa.array(keys, id_type), values.astype(np.float32))


def integers(values: npt.NDArray[np.int64]) -> Raw:
    """Return the parameter of an array of bigint [n]."""
    items = np.zeros(len(values), dtype=[("bytes", ">i4"), ("item", ">i8")])
    items["bytes"], items["item"] = 8, values
    return _array(items, BIGINT)


def _array(items: npt.NDArray[Any], oid: int) -> Raw:
    # Dimensions, nulls, type of elements; then, unless it is empty, how many, counted from 1.
    header = [1, 0, oid, len(items), 1] if len(items) else [0, 0, oid]
    return Raw(np.array(header, dtype=">i4").tobytes() + items.tobytes())


T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]

# The most connections at once. A later caller waits while others finish, at most WAIT seconds, the
# longest that a statement may take.
CONNECTIONS = 10
WAIT = 60.0

# Used where the address says nothing else. A server that does not answer is given up in seconds.
DEFAULTS = {
    "application_name": "evergram",
    "connect_timeout": "3",
    "keepalives_idle": "30",
    "tcp_user_timeout": "10000",
}
SECRET = {"password", "sslpassword"}

# A deadlock or a conflict: PostgreSQL itself says to try again.
AGAIN = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


# Set where neither the address nor the server's administrator did. synchronous_commit: an answer
# before the row is on the disk would be a promise that is not kept.
SETTINGS = SQL("""
    select set_config(name, value, false)
    from (values ('statement_timeout', '60s', '{0}'::text[]),
                 ('synchronous_commit', 'on', '{off}'),
                 ('hnsw.ef_search', '200', '{"",40}'),
                 ('hnsw.iterative_scan', 'relaxed_order', '{"",off}')) as s (name, value, unset)
    where coalesce(current_setting(name, true), '') = any(unset)
""")


class _RawDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Raw) -> bytes:
        return obj.data


def read_address(address: str) -> tuple[dict[str, str], str]:
    """Parse `postgresql://USER@HOST/DATABASE#NAME` into the connection's parameters and NAME.

    Raises: DataError: it is not that. The message does not repeat it: there may be a password.
    """
    url, _, name = address.rpartition("#")
    params = read_url(url)
    if params is None or not name:
        raise DataError(
            "The address of a store in PostgreSQL is postgresql://USER:PASSWORD@HOST/DATABASE#NAME;"
            " in a password, write @ as %40, # as %23, / as %2F and % as %25."
        )
    return params, checked_name(name)


def read_url(url: str) -> dict[str, str] | None:
    """Return the parameters of a connection; None if `url` is not one."""
    try:
        params = {key: str(value) for key, value in conninfo.conninfo_to_dict(url).items()}
    except psycopg.Error:
        return None
    ports = params.get("port", "").split(",")
    return params if url and all(p.isdigit() or not p for p in ports) else None


def show_address(params: dict[str, str], name: str) -> str:
    """Return the address without a password."""
    rest = {k: v for k, v in params.items() if k not in SECRET}
    host, port = rest.get("host", ""), rest.get("port", "")
    where = ""
    # A folder of sockets, or several hosts, cannot stand before the path.
    if host and not set(host) & set("/,:@?#[]% "):
        where = host + (f":{port}" if port else "")
        del rest["host"]
        rest.pop("port", None)
    user = quote(rest.pop("user"), safe="") + "@" if "user" in rest else ""
    database = quote(rest.pop("dbname", ""), safe="")
    query = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
    return f"postgresql://{user}{where}/{database}{query}#{name}"


class ConnectionPool:
    """A few connections that threads share."""

    def __init__(self, params: dict[str, str], shown: str) -> None:
        self._shown, self._params = shown, params
        self._idle: list[Connection] = []
        self._semaphore = threading.BoundedSemaphore(CONNECTIONS)
        self._closed = False
        # All work is done on this one, for a view of one moment.
        self._lent: Connection | None = None

    def run(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns. It must be safe to do twice: where the server went away
        meanwhile, it is done once more on a new connection.

        Raises: StoreError: the server cannot be reached or refuses. DataError: a value that it
            cannot hold.
        """
        if self._lent is not None:
            return work(self._lent)
        if not self._semaphore.acquire(timeout=WAIT):
            raise StoreError(
                f"None of the {CONNECTIONS} connections to {self._shown} became free in "
                f"{WAIT:.0f} s; see what the server is doing, and ask less at once."
            )
        try:
            try:
                return self._once(work)
            except (_ConnectionLost, *AGAIN):
                return self._once(work)
        except psycopg.DataError as error:
            raise DataError(f"{self._shown} cannot hold a value: {_sentence(error)}.") from None
        except psycopg.Error as error:
            raise StoreError(
                f"{self._shown} did not do what was asked: {_sentence(error)}; correct that on the "
                "server, or name another store."
            ) from None
        finally:
            self._semaphore.release()

    def at_one_moment(self, first: Composable, work: Callable[[ConnectionPool, list[Any]], T]) -> T:
        """Return what `work` returns, given a pool that reads the database at one moment, and the
        rows of the first query, which fixes it."""

        def read(connection: Connection) -> T:
            lent = copy(self)
            lent._lent = connection
            try:
                # Both in one message.
                begin = SQL("begin isolation level repeatable read, read only; ")
                answer = connection.execute(begin + first)
                answer.nextset()
                return work(lent, answer.fetchall())
            finally:
                if not connection.closed:
                    connection.rollback()

        return self.run(read)

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _once(self, work: Callable[[Connection], T]) -> T:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connected()
        try:
            return work(connection)
        except psycopg.Error as error:
            if not connection.closed:
                raise
            # The idle ones were cut with it.
            self._drop()
            raise _ConnectionLost(*error.args) from error
        finally:
            idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            if idle and not self._closed:
                self._idle.append(connection)
            else:
                connection.close()

    def _connected(self) -> Connection:
        """Return a new connection. Raises: StoreError."""
        if self._closed:
            raise was_closed(self._shown)
        try:
            # Statements are not prepared: poolers between us and the server may not keep them.
            connection = psycopg.connect(
                **{**DEFAULTS, **self._params},  # type: ignore[arg-type]
                autocommit=True,
                prepare_threshold=None,
            )
        except psycopg.Error as error:
            sentence = _sentence(error)
            todo = "is the server running, and are host, user and password right?"
            if "password" in sentence:
                todo = (
                    "give the right one in the environment as PGPASSWORD, or in ~/.pgpass "
                    "(readable by you alone)."
                )
            raise StoreError(f"{self._shown} cannot be reached: {sentence}; {todo}") from None
        connection.adapters.register_dumper(Raw, _RawDumper)
        try:
            connection.execute(SETTINGS)
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class _ConnectionLost(psycopg.OperationalError):
    """The connection ended before the answer."""


def _sentence(error: psycopg.Error) -> str:
    """Return the server's own words on one line."""
    sentence = error.diag.message_primary or str(error) or type(error).__name__
    return " ".join(sentence.split()).rstrip(".")
