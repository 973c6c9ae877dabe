"""A store in PostgreSQL with the extension pgvector.

Three tables a store: `NAME_spaces`, `NAME_side`, and `NAME_vectors` with the rows of all versions.
The primary key of the last is the id, so PostgreSQL itself sees to it that an id is in one space,
whoever writes at once; each space has its own index, over the rows of its version alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.postgres.connection import (
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
from evergram.stores.rows import ID_TYPES, Checks, Floats, Rows, Space
from evergram.stores.store import Store, StoreView, no_store, other_id_type, too_few

# After the import above, which says so where psycopg is missing.
import psycopg  # isort: skip
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal  # isort: skip

T = TypeVar("T")

# A space smaller than this is searched exactly.
INDEXED_FROM = 1_000
# As many ids are looked up and compared one by one; more of them filter the index's own order.
LOOKED_UP = 10_000

WRITTEN_AT_ONCE = 10_000

COLUMNS = {"int64": SQL("bigint"), "string": SQL('text collate "C"')}

# The ends of the names of a store's tables, and their columns.
OWN = {
    "_vectors": {"id", "version", "vector", "check_"},
    "_spaces": {"version", "dim", "fingerprint"},
    "_side": {"side"},
}

# One row at most: which side the store holds.
SIDE_TABLE = SQL(
    "create table if not exists {side} (one boolean primary key default true check (one),"
    " side text not null)"
)

# pgvector's iterative scans, without which a filter or a large k loses rows.
OLDEST = (0, 8)


@dataclass(frozen=True)
class HnswForm:
    """An index of one kind of codes.

    Args:
        suffix: of its name.
        type: that vectors are cast to.
        largest_dim: the most dims that pgvector indexes of this type.
    """

    suffix: str
    type: str
    largest_dim: int

    def cast(self, dim: int) -> Composed:
        """Return the casts of a vector."""
        half = SQL("") if self.type == "vector" else SQL("::halfvec({0})").format(Literal(dim))
        return SQL("vector({0}){1}").format(Literal(dim), half)

    def key(self, dim: int) -> Composed:
        """Return the expression that is indexed."""
        return SQL("(vector::{0})").format(self.cast(dim))


FORMS = {
    FLOAT32.kind: HnswForm("_hnsw", "vector", 2_000),
    "float16": HnswForm("_hnsw_float16", "halfvec", 4_000),
}

# How many rows of each space an index of halves is to choose for each result, in the comment of the
# index, which is written when it is whole; null where there is none.
OVERSAMPLE = (
    "obj_description(to_regclass(quote_ident({name} || '_v' || version"
    f" || '{FORMS['float16'].suffix}')), 'pg_class')::int"
)

# The rows that an index chooses, by the vectors themselves.
NEAREST_ROWS = (
    "select id, vector::vector({dim}) <#> %s::vector({dim}) as distance from"
    " (select id, vector from {table} where version = {version}{among} order by {order}"
    " limit {limit}) as chosen order by distance limit {k}"
)

# Of each space, whether it has rows, and the oversampling of its index of halves.
FACTS = (
    "select version, dim, fingerprint,"
    " exists (select from {table} as vectors where vectors.version = space.version),"
    f" {OVERSAMPLE} from {{meta}} as space order by version"
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
        self._facts: list[Any] | None = None
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

    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        # With its first question in one message: all later ones see what was committed then.
        begin = self._sql("begin isolation level repeatable read, read only; " + FACTS)

        def at_one_moment(connection: Connection) -> T:
            view = copy(self)
            view._connections = OneConnection(connection)
            try:
                answer = connection.execute(begin)
                answer.nextset()
                view._facts = answer.fetchall()
                return work(view)
            finally:
                if not connection.closed:
                    connection.rollback()

        return self._connections.run(at_one_moment)

    def spaces(self) -> dict[int, Space]:
        facts = self._facts
        if facts is None:
            facts = self._ask("select version, dim, fingerprint from {meta} order by version")
        return {version: Space(version, dim, mark) for version, dim, mark, *_ in facts}

    def filled(self) -> dict[int, Space]:
        # To count is to look at every row.
        facts = self._ask(FACTS) if self._facts is None else self._facts
        return {version: Space(version, dim, mark) for version, dim, mark, any_, _ in facts if any_}

    def count(self) -> dict[int, int]:
        return dict(
            self._ask("select version, count(*) from {table} group by version order by version")
        )

    def build_index(self, codes: IndexCodes = FLOAT32) -> list[int]:
        """Build HNSW for every space of at least INDEXED_FROM rows that are not too long for it;
        longer vectors stay without an index. Writers go on meanwhile."""
        codes.check(list(FORMS), self.address)
        counts, longest = self.count(), FORMS[codes.kind].largest_dim
        large = [
            space
            for version, space in self.spaces().items()
            if counts.get(version, 0) >= INDEXED_FROM and space.dim <= longest
        ]
        self.unindexed = {
            v: too_few(count, INDEXED_FROM)
            if count < INDEXED_FROM
            else f"rows have more than {longest} numbers, the most of an index of {codes.kind}"
            for v, count in counts.items()
            if v not in {space.version for space in large}
        }
        for space in large:
            build = partial(build_hnsw, name=self._name, space=space, codes=codes)
            self._connections.run(build)
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
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        exactly = ids is not None and len(ids) <= LOOKED_UP
        return self._best(version, queries, k, ids, exactly=exactly)

    def _nearest_without_graph(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        return self._best(version, queries, k, ids, exactly=True)

    def _best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, *, exactly: bool
    ) -> list[tuple[pa.Array, Floats]]:
        among = "" if ids is None else " and id = any(%s::{ids})"
        filtered = [] if ids is None else [self._ids(ids)]
        oversample, dim = self._oversample(version), queries.shape[1]
        inline = {"dim": dim, "version": version, "k": k}
        indexed, exact = (
            self._sql(NEAREST_ROWS.replace("{among}", among), limit=rows, order=order, **inline)
            for order, rows in zip(orders(dim, oversample), (k * (oversample or 1), k), strict=True)
        )
        results = []
        for one in queries:
            query = vector(one)
            # float16 holds 65504 at most; of a shorter query the order is the same.
            shorter = query if oversample is None else vector(one / max(1, np.abs(one).max()))
            best = [] if exactly else self._run(indexed, [query, *filtered, shorter])
            if len(best) < k:
                # The index gave up too early, or there are no more; one look at all rows tells.
                best = self._run(exact, [query, *filtered, query])
            scores = np.array([-distance for _, distance in best], dtype=np.float32)
            # The index's own order is only nearly right.
            order = np.argsort(-scores, kind="stable")
            keys = pa.array([key for key, _ in best], self._id_type)
            results.append((keys.take(pa.array(order)), scores[order]))
        return results

    def _oversample(self, version: int) -> int | None:
        """Return the oversampling of a space's index of halves; None if there is none."""
        facts = self._ask(FACTS) if self._facts is None else self._facts
        return next((oversample for v, *_, oversample in facts if v == version), None)

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
    """Make the tables that are missing, for ids int64 or string. Raises: StoreError: no
    extension."""
    table, meta = Identifier(f"{name}_vectors"), Identifier(f"{name}_spaces")
    _refuse_others(connection, name)
    with connection.transaction():
        # One at a time: "if not exists" alone is no protection against another who creates it.
        connection.execute(SQL("select pg_advisory_xact_lock(hashtext('evergram'))"))
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
        for query in (
            SQL(
                "create table if not exists {table} (id {id} primary key, version bigint not null,"
                " vector vector not null, check_ bigint not null)"
            ),
            # For a space that is small beside the others.
            SQL("create index if not exists {index} on {table} (version)"),
            SQL(
                "create table if not exists {meta} (version bigint primary key,"
                " dim integer not null, fingerprint text not null)"
            ),
            SIDE_TABLE,
        ):
            index, side = Identifier(f"{name}_version"), Identifier(f"{name}_side")
            names = {"table": table, "meta": meta, "side": side, "index": index}
            connection.execute(query.format(**names, id=COLUMNS[id_type]))


def _refuse_others(connection: Connection, name: str) -> None:
    """Refuse tables of somebody's own that have the names of the store's. Raises: StoreError."""
    for suffix, columns in OWN.items():
        shown = Identifier(f"{name}{suffix}").as_string(connection)
        there = connection.execute(
            SQL(
                "select attname::text from pg_attribute where attrelid = to_regclass(%s)"
                " and attnum > 0 and not attisdropped"
            ),
            [shown],
        ).fetchall()
        if there and not columns <= {column for (column,) in there}:
            raise StoreError(
                f"The database has a table {name}{suffix} that is not of a store: it lacks the "
                f"column {min(columns - {column for (column,) in there})}; give another name "
                "after #."
            )


def read_types(connection: Connection, name: str, shown: str) -> tuple[str, int]:
    """Return the type of ids of an existing store, and the oid of the type vector.

    Raises: DataError: there is no such store. StoreError: pgvector is too old.
    """
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


def orders(dim: int, oversample: int | None) -> tuple[Composed, Composed]:
    """Return the order by which an index chooses rows, and one that compares all rows.

    Args:
        oversample: of the index of halves; None where there is none.
    """
    whole, form = FORMS[FLOAT32.kind], FORMS[FLOAT32.kind if oversample is None else "float16"]
    product = SQL("{key} <#> %s::{type}")
    chosen = product.format(key=form.key(dim), type=form.cast(dim))
    # With `+ 0` it is no longer the order of the index.
    all_rows = product.format(key=whole.key(dim), type=whole.cast(dim))
    return chosen, SQL("({product}) + 0").format(product=all_rows)


def build_hnsw(connection: Connection, name: str, space: Space, codes: IndexCodes) -> None:
    """Build the index of a space unless it is there or another process builds it, and drop the one
    of other codes.

    Args:
        name: of the store.
        space: whose vectors are indexed by inner product.
    """
    form = FORMS[codes.kind]
    index = Identifier(f"{name}_v{space.version}{form.suffix}")
    key = [f"{name}_v{space.version}"]
    locked = connection.execute(SQL("select pg_try_advisory_lock(hashtext(%s))"), key).fetchone()
    if locked == (False,):
        return  # another process builds it
    try:
        connection.execute(SQL("set statement_timeout = 0"))
        # An index whose building was broken off is never used, and stands in the way of a new one.
        broken = SQL("select 1 from pg_index where indexrelid = to_regclass(%s) and not indisvalid")
        if connection.execute(broken, [index.as_string(connection)]).fetchone():
            connection.execute(SQL("drop index {name}").format(name=index))
        create = SQL(
            "create index concurrently if not exists {name} on {table} using hnsw"
            " ({key} {operators}) where version = {version}"
        )
        connection.execute(
            create.format(
                name=index,
                table=Identifier(f"{name}_vectors"),
                key=form.key(space.dim),
                operators=SQL(f"{form.type}_ip_ops"),
                version=Literal(space.version),
            )
        )
        if not codes.whole:
            comment = SQL("comment on index {name} is {oversample}")
            connection.execute(
                comment.format(name=index, oversample=Literal(str(codes.oversample)))
            )
        for kind, other in FORMS.items():
            if kind != codes.kind:
                old = Identifier(f"{name}_v{space.version}{other.suffix}")
                connection.execute(SQL("drop index concurrently if exists {name}").format(name=old))
    finally:
        if not connection.closed:
            connection.execute(SQL("select pg_advisory_unlock(hashtext(%s))"), key)
            connection.execute(SQL("reset statement_timeout"))
            prepare(connection)
