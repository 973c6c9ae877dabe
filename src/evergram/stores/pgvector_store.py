"""Stores in PostgreSQL with pgvector, and the user's own tables there.

A store has three tables: `NAME_spaces`, `NAME_side`, and `NAME_vectors` with the rows of all
versions. The primary key of `NAME_vectors` is the id, so an id is in one space even under
concurrent writes. Each space has its own partial index.

A user's table has one vector column per version. A search compares all rows: an index covers one
metric and one column, and cannot skip the rows that have a newer version's vector in another.
Columns are filled in transactions that write cells and their ids to a journal, `TABLE_evergram`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import quote, urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.adopted_store import BARE, BLOCK, AdoptedStore, TableFacts, canonical_uuids
from evergram.stores.filters import SIGNS, Condition, of_other_type, type_of
from evergram.stores.store import (
    ID_TYPES,
    Checks,
    Floats,
    Hits,
    ReadableStore,
    Rows,
    Space,
    Store,
    best_first,
    checked_name,
    no_store,
    was_closed,
)

try:
    import psycopg
    from psycopg import conninfo
    from psycopg.adapt import Dumper
    from psycopg.pq import Format
    from psycopg.sql import SQL, Composable, Composed, Identifier, Literal
except ImportError as error:
    raise DataError(
        "A store in PostgreSQL needs psycopg: pip install 'evergram[pgvector]'."
    ) from error

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]
Run = Callable[..., Any]

# psycopg does not know vectors: NumPy builds PostgreSQL's binary format for all rows at once.


class Raw(bytes):
    """A parameter in binary format; the query casts it to its type."""


class _RawDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Raw) -> bytes:
        return obj


def layout(dim: int) -> np.dtype[Any]:
    """Return the dtype of a vector [D] in the format of `vector_send`."""
    return np.dtype([("dim", ">i2"), ("unused", ">i2"), ("values", ">f4", dim)])


def vector(values: Floats) -> Raw:
    """Return a vector [D] as a parameter."""
    filled = np.zeros(1, dtype=layout(len(values)))
    filled["dim"], filled["values"] = len(values), values
    return Raw(filled.tobytes())


def vectors(values: Floats, oid: int) -> Raw:
    """Return vectors [n, D], n ≥ 1, as an array parameter; `oid` is that of their type."""
    dim = values.shape[1]
    items = np.zeros(len(values), dtype=[("bytes", ">i4"), ("item", layout(dim))])
    items["bytes"] = items.dtype["item"].itemsize
    items["item"]["dim"], items["item"]["values"] = dim, values
    # Array dimensions, null flag, element type, length, lower bound.
    header = np.array([1, 0, oid, len(items), 1], dtype=">i4")
    return Raw(header.tobytes() + items.tobytes())


def rows_of(
    shown: str, version: int, keys: Sequence[Any], raw: Sequence[bytes], id_type: pa.DataType
) -> Rows:
    """Return rows (at least one) from vectors in the format of `vector_send`. Raises:
    IntegrityError: their dims differ."""
    if len({len(one) for one in raw}) > 1:
        raise IntegrityError(f"Rows of version {version} in {shown} differ in dim.")
    values = np.frombuffer(b"".join(raw), dtype=layout(len(raw[0]) // 4 - 1))["values"]
    return Rows(version, pa.array(keys, id_type), values.astype(np.float32))


CONNECTIONS = 10  # at once, at most
WAIT = 60.0  # seconds for a free connection; also the statement timeout

# Defaults for what the address leaves out; a server that does not answer fails within seconds.
DEFAULTS = {
    "application_name": "evergram",
    "connect_timeout": "3",
    "keepalives_idle": "30",
    "tcp_user_timeout": "10000",
}
SECRET = {"password", "sslpassword"}

# Retried: conflicts with other sessions, or a column dropped after its name was read.
AGAIN = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.UndefinedColumn,
)

# Applied unless the address or the server's administrator set them. synchronous_commit: a write is
# on disk before it is acknowledged.
SETTINGS = SQL("""
    select set_config(name, value, false)
    from (values ('statement_timeout', '60s', '{0}'::text[]),
                 ('synchronous_commit', 'on', '{off}'),
                 ('hnsw.ef_search', '200', '{"",40}'),
                 ('hnsw.iterative_scan', 'relaxed_order', '{"",off}')) as s (name, value, unset)
    where coalesce(current_setting(name, true), '') = any(unset)
""")


def read_address(address: str) -> tuple[dict[str, str], str]:
    """Parse `postgresql://USER@HOST/DATABASE#NAME` into the connection's parameters and NAME.

    Raises: DataError: it is malformed. The message does not quote it: it may hold a password.
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
    """Return the connection's parameters; None if `url` is not a PostgreSQL URL."""
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
    # A socket folder, or several hosts, must go into the query string.
    if host and not set(host) & set("/,:@?#[]% "):
        where = host + (f":{port}" if port else "")
        del rest["host"]
        rest.pop("port", None)
    user = quote(rest.pop("user"), safe="") + "@" if "user" in rest else ""
    database = quote(rest.pop("dbname", ""), safe="")
    query = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
    return f"postgresql://{user}{where}/{database}{query}#{name}"


class ConnectionPool:
    """Connections that threads share, to a server that may restart at any time.

    Unlike psycopg_pool, which connects in the background and only logs errors until the timeout,
    this fails at once with the server's message, for example on a wrong password.
    """

    def __init__(self, params: dict[str, str], shown: str) -> None:
        self._shown, self._params = shown, params
        self._idle: list[Connection] = []
        self._semaphore = threading.BoundedSemaphore(CONNECTIONS)
        self._closed = False
        # The only connection, for a snapshot view.
        self._lent: Connection | None = None

    def run(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`, which must be idempotent: it is retried once if the
        connection is lost or on an error in AGAIN.

        Raises: StoreError: the server cannot be reached or refuses. DataError: it cannot hold a
            value.
        """
        if self._lent is not None:
            return work(self._lent)
        if not self._semaphore.acquire(timeout=WAIT):
            raise StoreError(
                f"None of the {CONNECTIONS} connections to {self._shown} became free in "
                f"{WAIT:.0f} s; see what the server is doing, and ask less at once."
            )
        again = True
        try:
            while True:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    connection = self._connected()
                try:
                    return work(connection)
                except psycopg.Error as error:
                    lost = connection.closed
                    if lost:
                        # The idle connections are lost, too.
                        self._drop()
                    if not again or not (lost or isinstance(error, AGAIN)):
                        raise
                    again = False
                finally:
                    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
                    if idle and not self._closed:
                        self._idle.append(connection)
                    else:
                        connection.close()
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
        """Return the result of `work`, given a pool that reads one snapshot of the database, and
        the rows of `first`, the query that takes the snapshot."""

        def read(connection: Connection) -> T:
            lent = copy(self)
            lent._lent = connection
            try:
                # One round trip.
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

    def _connected(self) -> Connection:
        if self._closed:
            raise was_closed(self._shown)
        try:
            # Statements are not prepared, because connection poolers may lose them.
            connection = psycopg.connect(
                **{**DEFAULTS, **self._params},  # type: ignore[arg-type]
                autocommit=True,
                prepare_threshold=None,
            )
        except psycopg.Error as error:
            raise StoreError(
                f"{self._shown} cannot be reached: {_sentence(error)}; is the server running, and "
                "are host, user and password right? A password is best given in the environment as "
                "PGPASSWORD, or in ~/.pgpass (readable by you alone)."
            ) from None
        connection.adapters.register_dumper(Raw, _RawDumper)
        try:
            connection.execute(SETTINGS)
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop(self) -> None:
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()


def _sentence(error: psycopg.Error) -> str:
    """Return the server's message on one line."""
    sentence = error.diag.message_primary or str(error) or type(error).__name__
    return " ".join(sentence.split()).rstrip(".")


INDEXED_FROM = 1_000  # smaller spaces are searched exactly
LOOKED_UP = 10_000  # a search among more ids filters the results of the index

WRITTEN_AT_ONCE = 10_000

COLUMNS = {"int64": SQL("bigint"), "string": SQL('text collate "C"')}
CREATE = (
    "create table {table} (id {id} primary key, version bigint not null,"
    " vector vector not null, check_ bigint not null)",
    # For spaces that are small compared with the others.
    "create index {of_version} on {table} (version)",
    "create table {meta} (version bigint primary key, dim integer not null,"
    " fingerprint text not null, writes bigint not null default 0)",
    # At most one row: the store's side.
    "create table {side} (one boolean primary key default true check (one), side text not null)",
)

# The first pgvector with iterative scans, without which a filter or a large k loses rows.
OLDEST = (0, 8)
# pgvector's limits on indexed dims, in single and in half precision; a half-precision index returns
# OVERSAMPLE rows for each result.
LONGEST, LONGEST_HALVES = 2_000, 4_000
OVERSAMPLE = 4

# The rows chosen by an index, ordered by exact distance.
NEAREST_ROWS = (
    "select id, vector::vector({dim}) <#> %s::vector({dim}) as distance from"
    " (select id, vector from {table} where version = {version}{among} order by {order}"
    " limit {limit}) as chosen order by distance limit {k}"
)

ROWS = "select id, version, vector_send(vector), check_ from {table} where "

# Each space, with whether it has rows, whether it has an index, and its count of writes.
FACTS = (
    "select version, dim, fingerprint,"
    " exists (select from {table} as vectors where vectors.version = space.version),"
    " to_regclass(quote_ident({name} || '_v' || version || '_hnsw')) is not null, writes"
    " from {meta} as space order by version"
)


class PgvectorStore(Store):
    kind: ClassVar[str] = "pgvector"

    # Rows of FACTS in a snapshot view; otherwise None, and each call queries them.
    _moment: list[Any] | None = None

    def __init__(self, params: dict[str, str], name: str, create: str | None = None) -> None:
        self._params, self._name = params, name
        self.address = show_address(params, name)
        self.id_type = ID_TYPES[create or "int64"]
        self._connections = ConnectionPool(params, self.address)
        try:
            if create is not None:
                self._connections.run(partial(self._create, id_type=create))
            self._read_types()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        return cls(*read_address(address), create)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._params, self._name)

    def _create(self, connection: Connection, id_type: str) -> None:
        """Create the tables unless the store exists. Raises: StoreError: pgvector is missing, or a
        table has the same name."""
        with connection.transaction():
            # One process at a time.
            connection.execute(SQL("select pg_advisory_xact_lock(hashtext('evergram'))"))
            there = self._sql("select to_regclass(quote_ident({name} || '_side')) is not null")
            if connection.execute(there).fetchone() == (True,):
                return
            connection.execute(SQL("create extension if not exists vector"))
            index = Identifier(f"{self._name}_version")
            for query in CREATE:
                connection.execute(self._sql(query, id=COLUMNS[id_type], of_version=index))

    def _read_types(self) -> None:
        """Read the ids' type and the oid of pgvector's `vector`. Raises: DataError: the store does
        not exist. StoreError: pgvector is too old."""
        ((extension, self._oid, column),) = self._ask(
            "select (select extversion from pg_extension where extname = 'vector'),"
            " to_regtype('vector')::oid, (select format_type(atttypid, null) from pg_attribute"
            " where attrelid = to_regclass(quote_ident({name} || '_vectors')) and attname = 'id')"
        )
        if extension is None or column is None:
            raise no_store(self.address)
        if tuple(int(part) for part in extension.split(".")[:2]) < OLDEST:
            raise StoreError(
                f"{self.address} has pgvector {extension}; {'.'.join(map(str, OLDEST))} or later "
                "is needed: update it and run: alter extension vector update."
            )
        if column not in ("bigint", "text"):
            raise StoreError(
                f"{self.address} is not a store: its table {self._name}_vectors has ids of type "
                f"{column}; give another name after #."
            )
        self.id_type = ID_TYPES["int64" if column == "bigint" else "string"]

    @property
    def side(self) -> str | None:
        return next((side for (side,) in self._ask("select side from {side}")), None)

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        def look(connections: ConnectionPool, facts: list[Any]) -> T:
            view = copy(self)
            view._connections, view._moment = connections, facts
            return work(view)

        return self._connections.at_one_moment(self._sql(FACTS), look)

    def spaces(self) -> dict[int, Space]:
        return {version: Space(version, dim, mark) for version, dim, mark, *_ in self._facts()}

    def filled(self) -> dict[int, Space]:
        # Counting would read every row.
        return {v: Space(v, dim, mark) for v, dim, mark, any_row, *_ in self._facts() if any_row}

    def _facts(self) -> list[Any]:
        return self._ask(FACTS) if self._moment is None else self._moment

    def state(self, version: int) -> object:
        return [writes for number, *_, writes in self._facts() if number == version]

    def count(self) -> dict[int, int]:
        return dict(
            self._ask("select version, count(*) from {table} group by version order by version")
        )

    def build_index(self) -> list[int]:
        """Build an HNSW index for each space of at least INDEXED_FROM rows, in half precision above
        LONGEST dims; spaces above LONGEST_HALVES dims get none. Writers are not blocked."""
        counts = self.count()
        large = [
            space
            for version, space in self.spaces().items()
            if counts.get(version, 0) >= INDEXED_FROM and space.dim <= LONGEST_HALVES
        ]
        for space in large:
            self._connections.run(partial(self._build_hnsw, space=space))
        return [space.version for space in large]

    def _build_hnsw(self, connection: Connection, space: Space) -> None:
        """Build the index of a space unless it exists or another process is building it."""
        halves, stem = space.dim > LONGEST, f"{self._name}_v{space.version}"

        def run(text: str) -> Any:
            query = self._sql(
                text,
                stem=stem,
                index=Identifier(f"{stem}_hnsw"),
                key=index_key(space.dim, halves)[0],
                operators=SQL("halfvec_ip_ops" if halves else "vector_ip_ops"),
                version=space.version,
            )
            return connection.execute(query)

        if run("select pg_try_advisory_lock(hashtext({stem}))").fetchone() == (False,):
            return
        try:
            run("set statement_timeout = 0")
            # An interrupted build leaves an unusable index that blocks a new one.
            broken = run(
                "select 1 from pg_index where not indisvalid"
                " and indexrelid = to_regclass(quote_ident({stem} || '_hnsw'))"
            )
            if broken.fetchone():
                run("drop index {index}")
            run(
                "create index concurrently if not exists {index} on {table} using hnsw"
                " ({key} {operators}) where version = {version}"
            )
        finally:
            if not connection.closed:
                run("select pg_advisory_unlock(hashtext({stem}))")
                run("reset statement_timeout")
                connection.execute(SETTINGS)

    def close(self) -> None:
        self._connections.close()

    def _set_side(self, side: str) -> None:
        insert = "insert into {side} (side) values (%s) on conflict do nothing returning side"
        self._ask(insert, [side])

    def _add_space(self, space: Space) -> None:
        self._ask(
            "insert into {meta} values (%s, %s, %s) on conflict do nothing returning version",
            [space.version, space.dim, space.fingerprint],
        )

    def _write(self, rows: Rows, checks: Checks) -> None:
        # All writers use the same order, to avoid deadlocks.
        order = pc.sort_indices(rows.ids).to_numpy()
        query = self._sql(
            "insert into {table} (id, version, vector, check_)"
            " select i, {version}, v, c from unnest(%s::{ids}, %s::vector[], %s::bigint[])"
            " as given(i, v, c)"
            " on conflict (id) do update set version = excluded.version,"
            " vector = excluded.vector, check_ = excluded.check_",
            version=rows.version,
        )
        count = self._sql(
            "update {meta} set writes = writes + 1 where version = {version}", version=rows.version
        )
        parts = [order[i : i + WRITTEN_AT_ONCE] for i in range(0, len(order), WRITTEN_AT_ONCE)]

        def write(connection: Connection) -> None:
            with connection.transaction():
                for part in parts:
                    values = [
                        rows.ids.take(pa.array(part)).to_pylist(),
                        vectors(rows.vectors[part], self._oid),
                        checks[part].tolist(),
                    ]
                    connection.execute(query, values)
                # Last, because it blocks the version's other writers until the commit.
                connection.execute(count)

        self._connections.run(write)

    def _delete(self, ids: pa.Array) -> None:
        self._ask(
            "with gone as (delete from {table} where id = any(%s::{ids}) returning 1)"
            " select count(*) from gone",
            [ids.to_pylist()],
        )

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        groups: dict[int, list[tuple[Any, ...]]] = {}
        for row in self._ask(ROWS + "id = any(%s::{ids})", [ids.to_pylist()]):
            groups.setdefault(row[1], []).append(row)
        return [self._block(version, rows) for version, rows in groups.items()]

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        # In pages by id: no transaction stays open, and a server restart only repeats a page.
        last: int | str | None = None
        while True:
            after = "version = %s and id > %s" if last is not None else "version = %s"
            values = [version] if last is None else [version, last]
            cells = self._ask(ROWS + after + " order by id limit {size}", values, size=size)
            if cells:
                yield self._block(version, cells)
            if len(cells) < size:
                return
            last = cells[-1][0]

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        exactly = exact or (ids is not None and len(ids) <= LOOKED_UP)
        among = "" if ids is None else " and id = any(%s::{ids})"
        filtered = [] if ids is None else [ids.to_pylist()]
        dim = queries.shape[1]
        halves = dim > LONGEST and any(v == version and there for v, *_, there, _ in self._facts())
        product = SQL("{0} <#> %s::{1}")
        inline = {"dim": dim, "version": version, "k": k}
        by_index, by_all = (
            self._sql(NEAREST_ROWS.replace("{among}", among), limit=rows, order=order, **inline)
            for order, rows in (
                (product.format(*index_key(dim, halves)), k * OVERSAMPLE if halves else k),
                # `+ 0` keeps PostgreSQL from using the index.
                (SQL("({0}) + 0").format(product.format(*index_key(dim, halves=False))), k),
            )
        )
        results = []
        for one in queries:
            query = vector(one)
            # float16 ends at 65504; scaling the query keeps the order.
            shorter = vector(one / max(1, np.abs(one).max())) if halves else query
            best = [] if exactly else self._run(by_index, [query, *filtered, shorter])
            if len(best) < k:
                # The index stopped early, or there are fewer rows: an exact search tells.
                best = self._run(by_all, [query, *filtered, query])
            scores = np.array([-distance for _, distance in best], dtype=np.float32)
            # The index's order is only approximate.
            results.append(best_first(pa.array([key for key, _ in best], self.id_type), scores))
        return results

    def _block(self, version: int, cells: list[tuple[Any, ...]]) -> tuple[Rows, Checks]:
        keys, _, raw, checks = zip(*cells, strict=True)
        rows = rows_of(self.address, version, keys, raw, self.id_type)
        return rows, np.array(checks, dtype=np.int64).astype(np.uint32)

    def _sql(self, text: str, **inline: Any) -> Composed:
        known: dict[str, Any] = {
            "table": Identifier(f"{self._name}_vectors"),
            "meta": Identifier(f"{self._name}_spaces"),
            "side": Identifier(f"{self._name}_side"),
            "ids": SQL("bigint[]" if pa.types.is_integer(self.id_type) else "text[]"),
            "name": self._name,
            **inline,
        }
        parts = {k: v if isinstance(v, Composable) else Literal(v) for k, v in known.items()}
        return SQL(text).format(**parts)

    def _ask(self, text: str, values: list[Any] | None = None, **inline: Any) -> list[Any]:
        return self._run(self._sql(text, **inline), values)

    def _run(self, query: Composed, values: list[Any] | None = None) -> list[Any]:
        return self._connections.run(
            lambda connection: connection.execute(query, values, binary=True).fetchall()
        )


def index_key(dim: int, halves: bool) -> tuple[Composed, Composed]:
    """Return the indexed expression, and the type to cast queries to."""
    cast = SQL("vector({0})").format(Literal(dim))
    cast += SQL("::halfvec({0})" if halves else "").format(Literal(dim))
    return SQL("(vector::{0})").format(cast), cast


# For each SQL type of ids: the Arrow type, and the SQL type of parameters.
OWN_IDS = {
    **dict.fromkeys(("int2", "int4", "int8"), (pa.int64(), "bigint")),
    **dict.fromkeys(("text", "varchar"), (pa.string(), "text")),
    "uuid": (pa.string(), "uuid"),
}
# pgvector's cosine distance of a zero vector is NaN; its cosine counts as 0.
DISTANCES = {
    "ip": "({stored} <#> {query})",
    "cosine": "coalesce(nullif({stored} <=> {query}, 'NaN'), 1)",
    "l2": "({stored} <-> {query})",
}
WHOLE = ("int2", "int4", "int8")
NUMBERS = (*WHOLE, "numeric", "float4", "float8")
TEXTS = ("text", "varchar", "bpchar", "uuid", "date", "timestamp", "timestamptz", "name")


CELLS = 1_000  # per transaction, which locks their rows
# One filling process at a time; a short lock timeout, so that other programs do not wait long.
BEGIN = SQL(
    "select set_config('lock_timeout', '5s', true), set_config('statement_timeout', '0', true),"
    " pg_advisory_xact_lock(hashtext({}))"
)
SCHEMA = "select relnamespace::regnamespace::text from pg_class where oid = %s::regclass"
CREATE_JOURNAL = (
    "create table {journal} (number bigint generated always as identity primary key,"
    " column_name text not null, ids {sort}[], at timestamptz not null default now())"
)
# A row without ids means that Evergram added the column.
ADDED = "insert into {journal} (column_name) values ({name})"
ENTRIES = "select number, ids from {journal} where column_name = {name} and ids is not null"
MARK = "select 1 from {journal} where column_name = {name} and ids is null"
FORGET = "delete from {journal} where column_name = {name}"
WRITE_CELLS = (
    "with written as (update {table} as mine set {column} = new.vector::{type}"
    " from unnest(%s::{sent}[], %s::vector[]) as new (id, vector)"
    " where mine.{id} = new.id and mine.{column} is null returning mine.{id}::{sort} as id)"
    " insert into {journal} (column_name, ids)"
    " select {name}, array_agg(id) from written having count(*) > 0"
)
CLEAR_CELLS = (
    "with gone as (delete from {journal} where number = {number})"
    " update {table} as mine set {column} = null"
    " from unnest(%s::{sent}[], %s::vector[]) as old (id, vector)"
    " where mine.{id} = old.id and mine.{column} = old.vector::{type}"
)


class AdoptedTable(AdoptedStore):
    kind: ClassVar[str] = "pgvector-table"
    _connection: ConnectionPool
    keys: ClassVar[tuple[str, ...]] = ("table", "id", "schema", "filter")

    def _connect(self) -> None:
        params = read_url(self._place)
        self._anywhere = self._place
        if params is None:
            raise self._wrong_address("what stands before the # is not a PostgreSQL address")
        shown = show_address(params, "").removesuffix("#")
        self.address = f"{self.kind}:{shown}#{self._names.fragment}"
        schema = [] if self._names.schema is None else [self._names.schema]
        self._relation = Identifier(*schema, self._names.table)
        self._connection = ConnectionPool(params, self.address)

    @property
    def absolute_address(self) -> str:
        return self.address

    def _look(self) -> TableFacts:
        query = SQL(
            "select attname::text, typname::text, atttypmod from pg_attribute"
            " join pg_type on pg_type.oid = atttypid"
            " where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped"
        )
        relation = self._relation.as_string(None)
        columns = self._connection.run(lambda c: c.execute(query, [relation]).fetchall())
        if not columns:
            raise DataError(
                f"There is no table of that name at {self.address}; give its schema by schema=NAME "
                "if it is not in the search path, and its name in the case in which it was created."
            )
        types = {name: kind for name, kind, _ in columns}
        wanted = self._wanted(types)
        uses: list[tuple[Sequence[str], str, Sequence[str]]] = [
            ([self._id], "for ids", tuple(OWN_IDS)),
            (list(wanted.values()), "for vectors", ("vector", "halfvec")),
            (self._names.filters, "for filters", ("bool", *NUMBERS, *TEXTS)),
        ]
        for names, use, allowed in uses:
            needed = f"one of {', '.join(allowed)} {use}"
            self._check_columns(types, names, allowed.__contains__, needed)
        said = {name: int(size) for name, _, size in columns}
        dims = {version: said[column] for version, column in wanted.items()}
        for version, dim in dims.items():
            if dim < 1:
                column = self._names.vectors[version]
                raise StoreError(
                    f"The column {column!r} of {self.address} does not say the dim of its vectors: "
                    f"alter its type to {types[column]}(D)."
                )
        return TableFacts(OWN_IDS[types[self._id]][0], dims, types)

    def _filter_of(self, conditions: list[Condition]) -> tuple[Composable, list[Any]]:
        """Return a boolean expression, and its parameters: one list of values per condition."""
        parts, bound = [], []
        for condition in conditions:
            kind, values = _compared(condition, self._known.types[condition.field])
            form = "{} = any(%s::{}[])"
            if condition.operator != "in":
                form = f"{{}} {SIGNS[condition.operator]} (%s::{{}}[])[1]"
            parts.append(SQL(form).format(name_of(condition.field), SQL(kind)))
            bound.append(values)
        return SQL(" and ").join(parts), bound

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        def look(connections: ConnectionPool, _: list[Any]) -> T:
            view = self._at_this_moment(_connection=connections)
            view._known = view._look()
            return work(view)

        return self._connection.at_one_moment(SQL("select 1"), look)

    def _rows(
        self, version: int, ids: pa.Array | None, size: int, *, own: bool = True
    ) -> Iterator[Rows]:
        query = "select {shown_id}, vector_send({column}::vector) from {table} where {rows}"
        for cells in self._pages(query, version, ids, size, own):
            keys, raw = zip(*cells, strict=True)
            yield rows_of(self.address, version, keys, raw, self.id_type)

    def bare_ids(self) -> Iterator[pa.Array]:
        self._facts()
        query = "select {shown_id} from {table} where {rows}"
        for cells in self._pages(query, BARE, None, BLOCK, own=True):
            yield pa.array([key for (key,) in cells], self.id_type)

    def _pages(
        self, query: str, version: int, ids: pa.Array | None, size: int, own: bool
    ) -> Iterator[list[Any]]:
        # In pages by id, so that no transaction stays open.
        after, last = (
            ("", []) if ids is None else (" and {id} = any(%s::{sent}[])", [self._ids(ids)])
        )
        page = f" order by {{id}} limit {size:d}" if ids is None else ""
        while True:
            cells = self._ask(query + after + page, version, last, own=own)
            if cells:
                yield cells
            if ids is not None or len(cells) < size:
                return
            after, last = " and {id} > %s::{sent}", [cells[-1][0]]

    def _count(self, version: int) -> int:
        ((rows,),) = self._ask("select count(*) from {table} where {rows}", version)
        return int(rows)

    def _has_rows(self, version: int) -> bool:
        return bool(self._ask("select 1 from {table} where {rows} limit 1", version))

    def _by_database(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[Hits]:
        among = "" if ids is None else " and {id} = any(%s::{sent}[])"
        # Half-precision vectors are compared in single precision.
        cast = SQL("vector({dim})").format(dim=Literal(queries.shape[1]))
        stored = name_of(self._names.vectors[version]) + SQL("::") + cast
        distance = SQL(DISTANCES[metric]).format(stored=stored, query=SQL("%s::") + cast)
        # `+ 0` keeps PostgreSQL from using an index.
        query = (
            "select {shown_id}, {distance} from {table} where {rows}"
            f"{among} order by {{distance}} + 0, {{id}} limit {k:d}"
        )
        filtered, results = [] if ids is None else [self._ids(ids)], []
        for one in queries:
            sent = vector(one)
            cells = self._ask(query, version, [*filtered, sent], before=[sent], distance=distance)
            keys = pa.array([key for key, _ in cells], self.id_type)
            distances = np.array([d for _, d in cells], dtype=np.float64)
            scores = {"ip": -distances, "cosine": 1 - distances, "l2": 0.0 - distances**2}[metric]
            versions = np.full(len(keys), version, np.int64)
            results.append(Hits(keys, scores.astype(np.float32), versions))
        return results

    def _ask(
        self,
        text: str,
        version: int,
        after: Sequence[Any] = (),
        *,
        before: Sequence[Any] = (),
        own: bool = True,
        **parts: Composable,
    ) -> list[Any]:
        """Return the result of a query in which `{rows}` stands for the condition on a version's
        rows; `before` and `after` are the parameters around those of the filter."""
        rows, bound = SQL("{} is not null").format(name_of(self._id)), []
        for name, there in self._conditions_on(version, own):
            rows += SQL(" and {} is not null" if there else " and {} is null").format(name_of(name))
        if self._chosen is not None:
            chosen, bound = self._chosen
            rows += SQL(" and ") + chosen
        query = self._sql(text, version, rows=rows, **parts)
        values = [*before, *bound, *after]
        return self._connection.run(
            lambda connection: connection.execute(query, values, binary=True).fetchall()
        )

    def _sql(self, text: str, version: int, **parts: Composable) -> Composed:
        key, sort = name_of(self._id), "bigint" if pa.types.is_integer(self.id_type) else "text"
        return SQL(text).format(
            table=SQL(self._relation.as_string(None).replace("%", "%%")),
            id=key,
            column=name_of(self._names.vectors.get(version, "")),
            shown_id=key + SQL(f"::{sort}"),
            sort=SQL(sort),
            sent=SQL(OWN_IDS[self._known.types[self._id]][1]),
            **parts,
        )

    def begin(self, space: Space, side: str = "") -> None:
        facts, version = self._facts(), space.version
        kind = next((facts.types[self._names.vectors[v]] for v in reversed(facts.dims)), "vector")
        with_dim = SQL(f"{kind}({space.dim:d})")

        def add(run: Run, there: bool) -> None:
            if not there:
                run(CREATE_JOURNAL)
            if self._names.vectors[version] not in self._look().types:
                run("alter table {table} add column {column} {kind}", kind=with_dim)
                run(ADDED)

        self._fill(version, add)

    def refresh(self, rows: Rows, saved: Store | None = None) -> None:
        for start in range(0, len(rows), CELLS):
            part = slice(start, start + CELLS)
            self._change(WRITE_CELLS, Rows(rows.version, rows.ids[part], rows.vectors[part]))

    def journal(self, version: int) -> list[tuple[int, pa.Array]]:
        entries = self._fill(version, lambda run, there: run(ENTRIES).fetchall() if there else [])
        return [(number, pa.array(ids, self.id_type)) for number, ids in entries]

    def clear_cells(self, number: int, rows: Rows) -> None:
        self._change(CLEAR_CELLS, rows, number=Literal(number))

    def _drop_column(self, version: int) -> None:
        def drop(run: Run, there: bool) -> None:
            if not there or not run(MARK).fetchone():
                return
            if self._names.vectors[version] in self._look().types:
                # Others can still read while we check that the column is empty.
                run("lock table {table} in share row exclusive mode")
                if run("select 1 from {table} where {column} is not null limit 1").fetchone():
                    return
                run("alter table {table} drop column {column}")
            run(FORGET)
            if not run("select 1 from {journal} limit 1").fetchone():
                run("drop table {journal}")

        self._fill(version, drop)

    def _change(self, query: str, rows: Rows, **parts: Composable) -> None:
        kind = SQL(self._type_of(rows.version))

        def change(run: Run, _: bool) -> None:
            ((oid,),) = run("select 'vector'::regtype::oid::int").fetchall()
            values = [self._ids(rows.ids), vectors(rows.vectors, oid)]
            run(query, values, type=kind, **parts)

        self._fill(rows.version, change)

    def _fill(self, version: int, work: Callable[[Run, bool], T]) -> T:
        """Return the result of `work`, run in a transaction of the one filling process, given a
        function that runs statements on the version's column, and whether the journal exists."""
        relation = self._relation.as_string(None)

        def begin(connection: Connection) -> T:
            with connection.transaction():
                connection.execute(BEGIN.format(Literal(f"evergram {relation}")))
                ((schema,),) = connection.execute(SCHEMA, [relation]).fetchall()
                journal = f"{schema}.{Identifier(self._journal_name).as_string(None)}"
                name = Literal(self._names.vectors[version].replace("%", "%%"))
                known = {"journal": SQL(journal.replace("%", "%%")), "name": name}

                def run(text: str, values: Sequence[Any] = (), **parts: Composable) -> Any:
                    query = self._sql(text, version, **known, **parts)
                    return connection.execute(query, list(values))

                there = connection.execute("select to_regclass(%s) is not null", [journal])
                return work(run, there.fetchone() == (True,))

        self._facts()
        return self._connection.run(begin)

    def _ids(self, ids: pa.Array) -> list[Any]:
        """Return ids as a parameter, without those that the column cannot hold."""
        if pa.types.is_integer(ids.type):
            return list(ids.to_pylist())
        texts = [text for text in ids.to_pylist() if "\0" not in text]
        return canonical_uuids(texts) if self._known.types[self._id] == "uuid" else texts


def name_of(column: str) -> Identifier:
    """Return a column's name for a statement with parameters, in which % is written %%."""
    return Identifier(column.replace("%", "%%"))


def _compared(condition: Condition, column: str) -> tuple[Any, list[Any]]:
    """Return the SQL type in which to compare values with a column, and the values."""
    values, sort = list(condition.values), type_of(condition)
    whole = all(isinstance(value, int) for value in values)
    if sort == "boolean" and column == "bool" and condition.operator == "in":
        return "boolean", values
    if sort == "number" and column in ("float4", "float8"):
        # In the column's precision; PostgreSQL accepts infinity for larger numbers.
        narrow = np.float32 if column == "float4" else float
        with np.errstate(over="ignore", under="ignore"):
            return column, [float(narrow(float(value))) for value in values]
    if sort == "number" and column in NUMBERS:
        # A fraction must not be rounded to an integer that would match rows.
        kind = "bigint" if whole and column in WHOLE else "numeric"
        return kind, values if whole else [Decimal(str(value)) for value in values]
    if sort == "text" and column in TEXTS:
        return {"varchar": "text", "name": "text"}.get(column, column), values
    raise of_other_type(condition, column)
