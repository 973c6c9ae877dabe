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

from evergram.errors import DataError, IntegrityError
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.postgres.connection import (
    Connection,
    ConnectionPool,
    OneConnection,
    read_address,
    show_address,
)
from evergram.stores.postgres.fast_path import Raw, integers, layout, vector, vectors
from evergram.stores.postgres.hnsw_index import (
    FORMS,
    NEAREST_ROWS,
    OVERSAMPLE,
    build_hnsw,
    orders,
)
from evergram.stores.postgres.tables import (
    create_tables,
    prepare,
    read_side,
    read_types,
    write_side,
)
from evergram.stores.store import ID_TYPES, Checks, Floats, Rows, Space, Store, StoreView, too_few

# After the import above, which says so where psycopg is missing.
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal  # isort: skip

T = TypeVar("T")

# A space smaller than this is searched exactly.
INDEXED_FROM = 1_000
# As many ids are looked up and compared one by one; more of them filter the index's own order.
LOOKED_UP = 10_000

WRITTEN_AT_ONCE = 10_000

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
                raise DataError(f"{shown} has ids of type {kind}, not {create}; use another store.")
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
        return self._connections.run(lambda connection: read_side(connection, self._name))

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
        self._connections.run(lambda connection: write_side(connection, self._name, side))

    def _add_space(self, space: Space) -> None:
        self._ask(
            "insert into {meta} values (%s, %s, %s) on conflict do nothing returning version",
            [space.version, space.dim, space.fingerprint],
        )
        if self.spaces()[space.version] != space:
            # Another process was quicker, with another one.
            self.add_space(space)

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
        known = {"table": self._table, "meta": self._meta, "ids": self._ids_type}
        known["name"] = Literal(self._name)
        return SQL(text).format(**known, **{k: _part(v) for k, v in inline.items()})

    def _ask(self, text: str, values: list[Any] | None = None, **inline: Any) -> list[Any]:
        return self._run(self._sql(text, **inline), values)

    def _run(self, query: Composed, values: list[Any] | None = None) -> list[Any]:
        return self._connections.run(
            lambda connection: connection.execute(query, values, binary=True).fetchall()
        )


def _part(value: Any) -> Composable:
    return value if isinstance(value, Composable) else Literal(value)
