"""A store in PostgreSQL with the extension pgvector.

Three tables a store: `NAME_spaces`, `NAME_side`, and `NAME_vectors` with the rows of all versions.
The primary key of the last is the id, so PostgreSQL itself sees to it that an id is in one space,
whoever writes at once; each space has its own index, over the rows of its version alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.postgres_connection import (
    Connection,
    ConnectionPool,
    OneConnection,
    Raw,
    integers,
    layout,
    prepare,
    read_address,
    show_address,
    vector,
    vectors,
)
from evergram.stores.rows import ID_TYPES, Checks, Floats, Rows, Space, best_first
from evergram.stores.store import ReadableStore, Store, no_store, other_id_type

# After the import above, which says so where psycopg is missing.
import psycopg  # isort: skip
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal  # isort: skip

T = TypeVar("T")

# A space smaller than this is searched exactly.
INDEXED_FROM = 1_000
# At most this many ids are looked up and compared; more of them filter the index's own order.
LOOKED_UP = 10_000

WRITTEN_AT_ONCE = 10_000

COLUMNS = {"int64": SQL("bigint"), "string": SQL('text collate "C"')}

CREATE = (
    "create table {table} (id {id} primary key, version bigint not null,"
    " vector vector not null, check_ bigint not null)",
    # For a space that is small compared with the others.
    "create index {index} on {table} (version)",
    "create table {meta} (version bigint primary key, dim integer not null,"
    " fingerprint text not null)",
    # One row at most: which side the store holds.
    "create table {side} (one boolean primary key default true check (one), side text not null)",
)

# pgvector's iterative scans, without which a filter or a large k loses rows.
OLDEST = (0, 8)


# The most dims that pgvector indexes of whole vectors, and of vectors in half precision, whose
# index chooses OVERSAMPLE rows for each result.
LONGEST, LONGEST_HALVES = 2_000, 4_000
OVERSAMPLE = 4

# The rows that an index chooses, by the vectors themselves.
NEAREST_ROWS = (
    "select id, vector::vector({dim}) <#> %s::vector({dim}) as distance from"
    " (select id, vector from {table} where version = {version}{among} order by {order}"
    " limit {limit}) as chosen order by distance limit {k}"
)

# Of each space, whether it has rows, and an index.
FACTS = (
    "select version, dim, fingerprint,"
    " exists (select from {table} as vectors where vectors.version = space.version),"
    " to_regclass(quote_ident({name} || '_v' || version || '_hnsw')) is not null"
    " from {meta} as space order by version"
)


class PgvectorStore(Store):
    kind: ClassVar[str] = "pgvector"

    def __init__(
        self, connections: ConnectionPool, address: str, name: str, id_type: pa.DataType, oid: int
    ) -> None:
        self._connections: ConnectionPool | OneConnection = connections
        self._address = address
        self._name = name
        self._id_type = id_type
        self._oid = oid
        # Rows of FACTS, for a view of one moment; None where each call asks.
        self._moment: list[Any] | None = None
        self._table = Identifier(f"{name}_vectors")
        self._meta = Identifier(f"{name}_spaces")
        number = pa.types.is_integer(id_type)
        self._ids_type = SQL("bigint[]") if number else SQL("text[]")

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`."""
        return cls._of(*read_address(address), create)

    def __reduce__(self) -> tuple[Any, ...]:
        assert isinstance(self._connections, ConnectionPool)
        return type(self)._of, (self._connections.params, self._name)

    @classmethod
    def _of(cls, params: dict[str, str], name: str, create: str | None = None) -> Self:
        shown = show_address(params, name)
        connections = ConnectionPool(params, shown, prepare)
        try:
            if create is not None:
                connections.run(lambda c: create_tables(c, name, create))
            kind, oid = connections.run(lambda c: read_types(c, name, shown))
            if create is not None and kind != create:
                raise other_id_type(shown, kind, create)
        except BaseException:
            connections.close()
            raise
        return cls(connections, shown, name, ID_TYPES[kind], oid)

    @property
    def address(self) -> str:
        return self._address

    @property
    def id_type(self) -> pa.DataType:
        return self._id_type

    @property
    def side(self) -> str | None:
        return next((side for (side,) in self._ask("select side from {side}")), None)

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        # With its first question in one message: all later ones see what was committed then.
        begin = self._sql("begin isolation level repeatable read, read only; " + FACTS)

        def at_one_moment(connection: Connection) -> T:
            view = copy(self)
            view._connections = OneConnection(connection)
            try:
                answer = connection.execute(begin)
                answer.nextset()
                view._moment = answer.fetchall()
                return work(view)
            finally:
                if not connection.closed:
                    connection.rollback()

        return self._connections.run(at_one_moment)

    def spaces(self) -> dict[int, Space]:
        return {version: Space(version, dim, mark) for version, dim, mark, *_ in self._facts()}

    def filled(self) -> dict[int, Space]:
        # To count is to look at every row.
        return {v: Space(v, dim, mark) for v, dim, mark, any_row, _ in self._facts() if any_row}

    def _facts(self) -> list[Any]:
        return self._ask(FACTS) if self._moment is None else self._moment

    def count(self) -> dict[int, int]:
        return dict(
            self._ask("select version, count(*) from {table} group by version order by version")
        )

    def build_index(self) -> list[int]:
        """Build HNSW for every space of at least INDEXED_FROM rows, in half precision of vectors of
        more than LONGEST dims; those of more than LONGEST_HALVES stay without an index. Writers go
        on meanwhile."""
        counts = self.count()
        large = [
            space
            for version, space in self.spaces().items()
            if counts.get(version, 0) >= INDEXED_FROM and space.dim <= LONGEST_HALVES
        ]
        for space in large:
            self._connections.run(partial(build_hnsw, name=self._name, space=space))
        return [space.version for space in large]

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
        # In one order for everybody, so that two writers do not wait for each other in a circle.
        order = pc.sort_indices(rows.ids).to_numpy()
        query = self._sql(
            "insert into {table} (id, version, vector, check_)"
            " select i, {version}, v, c from unnest(%s::{ids}, %s::vector[], %s::bigint[])"
            " as given(i, v, c)"
            " on conflict (id) do update set version = excluded.version,"
            " vector = excluded.vector, check_ = excluded.check_",
            version=Literal(rows.version),
        )
        parts = [order[i : i + WRITTEN_AT_ONCE] for i in range(0, len(order), WRITTEN_AT_ONCE)]

        def write(connection: Connection) -> None:
            with connection.transaction():
                for part in parts:
                    values = [
                        self._ids(rows.ids.take(pa.array(part))),
                        vectors(rows.vectors[part], self._oid),
                        integers(checks[part].astype(np.int64)),
                    ]
                    connection.execute(query, values)

        self._connections.run(write)

    def _delete(self, ids: pa.Array) -> None:
        self._ask(
            "with gone as (delete from {table} where id = any(%s::{ids}) returning 1)"
            " select count(*) from gone",
            [self._ids(ids)],
        )

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        cells = self._ask(
            "select id, version, vector_send(vector), check_ from {table}"
            " where id = any(%s::{ids})",
            [self._ids(ids)],
        )
        groups: dict[int, list[tuple[Any, ...]]] = {}
        for row in cells:
            groups.setdefault(row[1], []).append(row)
        return [self._block(version, rows) for version, rows in groups.items()]

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        # Page by page in the order of ids: no transaction stays open, and a server that is
        # restarted meanwhile only repeats a page.
        last: int | str | None = None
        while True:
            query = "select id, version, vector_send(vector), check_ from {table} where "
            after = "version = %s and id > %s" if last is not None else "version = %s"
            values = [version] if last is None else [version, last]
            cells = self._ask(query + after + " order by id limit {size}", values, size=size)
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
        filtered = [] if ids is None else [self._ids(ids)]
        dim = queries.shape[1]
        halves = dim > LONGEST and any(v == version and there for v, *_, there in self._facts())
        product = SQL("{0} <#> %s::{1}")
        inline = {"dim": dim, "version": version, "k": k}
        by_index, by_all = (
            self._sql(NEAREST_ROWS.replace("{among}", among), limit=rows, order=order, **inline)
            for order, rows in (
                (product.format(*index_key(dim, halves)), k * OVERSAMPLE if halves else k),
                # With `+ 0` it is no longer the order of the index.
                (SQL("({0}) + 0").format(product.format(*index_key(dim, halves=False))), k),
            )
        )
        results = []
        for one in queries:
            query = vector(one)
            # float16 holds 65504 at most; of a shorter query the order is the same.
            shorter = vector(one / max(1, np.abs(one).max())) if halves else query
            best = [] if exactly else self._run(by_index, [query, *filtered, shorter])
            if len(best) < k:
                # The index gave up too early, or there are no more; one look at all rows tells.
                best = self._run(by_all, [query, *filtered, query])
            scores = np.array([-distance for _, distance in best], dtype=np.float32)
            # The index's own order is only nearly right.
            results.append(best_first(pa.array([key for key, _ in best], self._id_type), scores))
        return results

    def _block(self, version: int, cells: list[tuple[Any, ...]]) -> tuple[Rows, Checks]:
        keys, _, raw, checks = zip(*cells, strict=True)
        if len({len(one) for one in raw}) > 1:
            raise IntegrityError(f"Rows of version {version} in {self.address} differ in dim.")
        values = np.frombuffer(b"".join(raw), dtype=layout(len(raw[0]) // 4 - 1))["values"]
        rows = Rows(version, pa.array(keys, self._id_type), values.astype(np.float32))
        return rows, np.array(checks, dtype=np.int64).astype(np.uint32)

    def _ids(self, ids: pa.Array) -> Raw | list[str]:
        if pa.types.is_integer(self._id_type):
            return integers(ids.to_numpy())
        texts: list[str] = ids.to_pylist()
        if any("\0" in text for text in texts):
            raise DataError("An id has a character NUL; PostgreSQL holds no such text.")
        return texts

    def _sql(self, text: str, **inline: Any) -> Composed:
        known: dict[str, Composable] = {
            **{"table": self._table, "meta": self._meta, "ids": self._ids_type},
            **{"name": Literal(self._name), "side": Identifier(f"{self._name}_side")},
        }
        return SQL(text).format(**known, **{k: _part(v) for k, v in inline.items()})

    def _ask(self, text: str, values: list[Any] | None = None, **inline: Any) -> list[Any]:
        return self._run(self._sql(text, **inline), values)

    def _run(self, query: Composed, values: list[Any] | None = None) -> list[Any]:
        return self._connections.run(
            lambda connection: connection.execute(query, values, binary=True).fetchall()
        )


def _part(value: Any) -> Composable:
    return value if isinstance(value, Composable) else Literal(value)


def create_tables(connection: Connection, name: str, id_type: str) -> None:
    """Make the tables, for ids int64 or string, unless the store is there. Raises: StoreError: no
    extension, or a table of the same name."""
    table, meta = Identifier(f"{name}_vectors"), Identifier(f"{name}_spaces")
    with connection.transaction():
        # One at a time.
        connection.execute(SQL("select pg_advisory_xact_lock(hashtext('evergram'))"))
        index, side = Identifier(f"{name}_version"), Identifier(f"{name}_side")
        there = SQL("select to_regclass(%s) is not null")
        if connection.execute(there, [side.as_string(connection)]).fetchone() == (True,):
            return
        try:
            connection.execute(SQL("create extension if not exists vector"))
        except psycopg.Error as error:
            if isinstance(error, psycopg.OperationalError):
                raise
            raise StoreError(
                "The database has no extension vector, and it could not be made "
                f"({error.diag.message_primary}); install pgvector on the server and let an "
                "administrator run: create extension vector."
            ) from None
        for query in CREATE:
            connection.execute(
                SQL(query).format(
                    table=table, meta=meta, side=side, index=index, id=COLUMNS[id_type]
                )
            )


def read_types(connection: Connection, name: str, shown: str) -> tuple[str, int]:
    """Return the type of ids of a store, and the oid of the type vector. Raises: DataError: there
    is no such store. StoreError: pgvector is too old."""
    extension = connection.execute(
        SQL("select extversion from pg_extension where extname = 'vector'")
    ).fetchone()
    column = connection.execute(
        SQL(
            "select format_type(atttypid, null) from pg_attribute"
            " where attrelid = to_regclass(%s) and attname = 'id'"
        ),
        [Identifier(f"{name}_vectors").as_string(connection)],
    ).fetchone()
    if extension is None or column is None:
        raise no_store(shown)
    if tuple(int(part) for part in extension[0].split(".")[:2]) < OLDEST:
        raise StoreError(
            f"{shown} has pgvector {extension[0]}; {'.'.join(map(str, OLDEST))} or later is "
            "needed: update it and run: alter extension vector update."
        )
    oid = connection.execute(SQL("select 'vector'::regtype::oid")).fetchone()
    assert oid is not None
    kinds = {"bigint": "int64", "text": "string"}
    if column[0] not in kinds:
        raise StoreError(
            f"{shown} is not a store: its table {name}_vectors has ids of type {column[0]}; give "
            "another name after #."
        )
    return kinds[column[0]], oid[0]


def index_key(dim: int, halves: bool) -> tuple[Composed, Composed]:
    """Return the expression that is indexed, and the type that a query is cast to."""
    cast = SQL("vector({0})").format(Literal(dim))
    cast += SQL("::halfvec({0})" if halves else "").format(Literal(dim))
    return SQL("(vector::{0})").format(cast), cast


def build_hnsw(connection: Connection, name: str, space: Space) -> None:
    """Build the index of a space of a store, by inner product, unless it is there or another
    process builds it."""
    halves, stem = space.dim > LONGEST, f"{name}_v{space.version}"
    index = Identifier(f"{stem}_hnsw")

    def run(text: str, values: list[Any] | None = None) -> Any:
        query = SQL(text).format(
            name=index,
            table=Identifier(f"{name}_vectors"),
            key=index_key(space.dim, halves)[0],
            operators=SQL("halfvec_ip_ops" if halves else "vector_ip_ops"),
            version=Literal(space.version),
        )
        return connection.execute(query, values)

    if run("select pg_try_advisory_lock(hashtext(%s))", [stem]).fetchone() == (False,):
        return  # another process builds it
    try:
        run("set statement_timeout = 0")
        # An index whose building was broken off is never used, and stands in the way of a new one.
        broken = "select 1 from pg_index where indexrelid = to_regclass(%s) and not indisvalid"
        if run(broken, [index.as_string(connection)]).fetchone():
            run("drop index {name}")
        run(
            "create index concurrently if not exists {name} on {table} using hnsw"
            " ({key} {operators}) where version = {version}"
        )
    finally:
        if not connection.closed:
            run("select pg_advisory_unlock(hashtext(%s))", [stem])
            run("reset statement_timeout")
            prepare(connection)
