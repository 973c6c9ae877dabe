"""A table of somebody's own with a column of pgvector for each version, read where it is.

A row belongs to the newest version whose column is not NULL in it. Every search compares all rows
that it may return: indexes of the table are for one metric and one column, and none are for rows
that have a NULL in another column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa

from evergram.errors import IntegrityError, StoreError
from evergram.stores.adopted_store import NO_CHECKS, AdoptedStore, read_only
from evergram.stores.filters import Filter
from evergram.stores.postgres.connection import Connection, ConnectionPool, OneConnection
from evergram.stores.postgres.distances import distance_of, name_of, scores_of
from evergram.stores.postgres.fast_path import Raw, integers, layout, vector
from evergram.stores.postgres.sql_filter import sql_of
from evergram.stores.postgres.table_address import (
    TableAddress,
    TableFacts,
    read_facts,
    read_table_address,
    sendable,
)
from evergram.stores.postgres.tables import prepare
from evergram.stores.store import ID_TYPES, Checks, Floats, Hits, Rows, Space, StoreView

# After the import above, which says so where psycopg is missing.
from psycopg.sql import SQL, Composable, Composed, Literal  # isort: skip

T = TypeVar("T")


class AdoptedTable(AdoptedStore):
    kind: ClassVar[str] = "pgvector-table"

    def __init__(self, connections: ConnectionPool, address: TableAddress) -> None:
        super().__init__()
        self._connections: ConnectionPool | OneConnection = connections
        self._at = address
        # Of a view of one moment; None where each call asks.
        self._facts: TableFacts | None = None
        self._filter: tuple[Composable, list[Any]] | None = None
        facts = self._connections.run(lambda c: read_facts(c, address))
        self._id_type = ID_TYPES[facts.id_type]
        self._sent = facts.sent
        self._dims = {version: self._dim(version, facts) for version in address.vectors}
        if not facts.unique:
            self._refuse_twice()

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`. Raises: StoreError: it shall be created, and so written."""
        read = read_table_address(address)
        if create is not None:
            raise read_only(read.shown)
        return cls._of(read)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._of, (self._at,)

    @classmethod
    def _of(cls, at: TableAddress) -> Self:
        connections = ConnectionPool(at.params, at.shown, _prepare)
        try:
            return cls(connections, at)
        except BaseException:
            connections.close()
            raise

    @property
    def address(self) -> str:
        return self._at.shown

    @property
    def id_type(self) -> pa.DataType:
        return self._id_type

    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        begin = SQL("begin isolation level repeatable read, read only")

        def at_one_moment(connection: Connection) -> T:
            view = copy(self)
            view._connections = OneConnection(connection)
            try:
                connection.execute(begin)
                view._facts = view._now()
                view._sent = view._facts.sent
                return work(view)
            finally:
                if not connection.closed:
                    connection.rollback()

        return self._connections.run(at_one_moment)

    def where(self, conditions: Filter) -> Self:
        view = copy(self)
        view._filter = sql_of(conditions, self._now().types, self._at.filters)
        return view

    def spaces(self) -> dict[int, Space]:
        facts = self._now()
        for version, dim in self._dims.items():
            # Only a column that does not say its dim is read for it, once.
            said = facts.dims[version] or dim
            self._dims[version] = self._dim(version, facts) if said is None else said
        return {version: Space(version, dim, "") for version, dim in self._dims.items() if dim}

    def filled(self) -> dict[int, Space]:
        spaces = self.spaces()
        return {version: spaces[version] for version in spaces if self._any(version)}

    def count(self) -> dict[int, int]:
        counts = {}
        for version in self.spaces():
            ((rows,),) = self._ask("select count(*) from {table} where {own}", version)
            counts[version] = rows
        return {version: rows for version, rows in counts.items() if rows}

    def close(self) -> None:
        self._connections.close()

    def column_rows(self, version: int, ids: pa.Array | None, size: int) -> Rows:
        among = SQL("") if ids is None else SQL(" and {id} = any(%s::{sent}[])").format(**self._sql)
        query = SQL(
            "select {shown_id}, vector_send({column}::vector) from {table}"
            " where {id} is not null and {column} is not null{among} limit {size}"
        ).format(
            **self._sql,
            column=name_of(self._at.vectors[version]),
            among=among,
            size=Literal(size),
        )
        cells = self._run(query, [] if ids is None else [self._ids(ids)])
        return self._block(version, cells)

    def nearest_by(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[Hits]:
        self.require(version)
        among = SQL("") if ids is None else SQL(" and {id} = any(%s::{sent}[])").format(**self._sql)
        distance = distance_of(metric, self._at.vectors[version], queries.shape[1])
        # With `+ 0` the order is that of no index, and all rows are compared.
        query = (
            "select {shown_id}, {distance} from {table} where {own}{among}"
            " order by {distance} + 0, {id} limit {k}"
        )
        results = []
        for one in queries:
            sent = vector(one)
            cells = self._ask(
                query,
                version,
                [sent],
                [*([] if ids is None else [self._ids(ids)]), sent],
                distance=distance,
                among=among,
                k=Literal(k),
            )
            keys = pa.array([key for key, _ in cells], self._id_type)
            self.refuse_twice_in(keys)
            scores = scores_of(metric, np.array([d for _, d in cells], dtype=np.float64))
            results.append(Hits(keys, scores, np.full(len(keys), version, np.int64)))
        return results

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        return [(h.ids, h.scores) for h in self.nearest_by("ip", version, queries, k, ids)]

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        blocks = []
        for version in self.spaces():
            cells = self._ask(
                "select {shown_id}, vector_send({column}::vector) from {table}"
                " where {own} and {id} = any(%s::{sent}[])",
                version,
                [],
                [self._ids(ids)],
            )
            if cells:
                self.require(version)
                blocks.append((self._block(version, cells), NO_CHECKS))
        return blocks

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        self.require(version)
        last: int | str | None = None
        while True:
            after = "" if last is None else " and {id} > %s::{sent}"
            cells = self._ask(
                "select {shown_id}, vector_send({column}::vector) from {table} where {own}"
                + after
                + " order by {id} limit {size}",
                version,
                [],
                [] if last is None else [last],
                size=Literal(size),
            )
            if cells:
                yield self._block(version, cells), NO_CHECKS
            if len(cells) < size:
                return
            last = cells[-1][0]

    def _now(self) -> TableFacts:
        """Return the table's columns as they are. Raises: StoreError: they are others by now."""
        if self._facts is not None:
            return self._facts
        facts = self._connections.run(lambda c: read_facts(c, self._at))
        self.check_id_type(ID_TYPES[facts.id_type])
        return facts

    @property
    def _sql(self) -> dict[str, Composable]:
        id_column = name_of(self._at.id)
        cast = SQL("bigint") if pa.types.is_integer(self._id_type) else SQL("text")
        return {
            "table": self._at.sql,
            "id": id_column,
            "shown_id": id_column + SQL("::") + cast,
            "sent": SQL(self._sent),
        }

    def _ask(
        self,
        text: str,
        version: int,
        before: list[Any] | None = None,
        after: list[Any] | None = None,
        **parts: Composable,
    ) -> list[Any]:
        """Return the rows of a query over the rows of a version, which `{own}` stands for.

        Args:
            before, after: parameters that stand before those of the filter, and after them.
        """
        own = self._at.own_rows(version)
        values = list(before or ())
        if self._filter is not None:
            own += SQL(" and ") + self._filter[0]
            values += self._filter[1]
        query = SQL(text).format(
            **self._sql, column=name_of(self._at.vectors[version]), own=own, **parts
        )
        return self._run(query, values + list(after or ()))

    def _run(self, query: Composed, values: list[Any]) -> list[Any]:
        return self._connections.run(
            lambda connection: connection.execute(query, values, binary=True).fetchall()
        )

    def _any(self, version: int) -> bool:
        return bool(self._ask("select 1 from {table} where {own} limit 1", version))

    def _ids(self, ids: pa.Array) -> Raw | list[str]:
        if pa.types.is_integer(self._id_type):
            return integers(ids.to_numpy())
        return sendable(ids.to_pylist(), self._sent)

    def _block(self, version: int, cells: list[tuple[Any, ...]]) -> Rows:
        keys, raw = zip(*cells, strict=True) if cells else ((), ())
        dim = self._dims[version] or 0
        if any(len(one) != 4 * dim + 4 for one in raw):
            self._dims[version] = None  # Looked up again by the next call.
            raise IntegrityError(
                f"Vectors of the column {self._at.vectors[version]!r} of {self.address} differ in "
                f"dim; those of before had {dim}."
            )
        ids = pa.array(keys, self._id_type)
        self.refuse_twice_in(ids)
        values = np.frombuffer(b"".join(raw), dtype=layout(dim))["values"].reshape(-1, dim)
        return Rows(version, ids, values.astype(np.float32))

    def _dim(self, version: int, facts: TableFacts) -> int | None:
        """Return the dim of a column; of one without, that of all its vectors, None without any."""
        if facts.dims[version] is not None:
            return facts.dims[version]
        query = SQL(
            "select distinct vector_dims({column}) from {table} where {column} is not null limit 2"
        ).format(table=self._at.sql, column=name_of(self._at.vectors[version]))
        dims = [dim for (dim,) in self._run(query, [])]
        if len(dims) > 1:
            raise StoreError(
                f"Vectors of the column {self._at.vectors[version]!r} of {self.address} have "
                f"{min(dims)} and {max(dims)} dims; a column holds vectors of one version, all of "
                "one dim."
            )
        return dims[0] if dims else None

    def _refuse_twice(self) -> None:
        """Refuse a table or a view that has an id twice. Raises: StoreError."""
        query = SQL(
            "select {shown_id} from {table} where {id} is not null group by {id}"
            " having count(*) > 1 limit 1"
        ).format(**self._sql)
        twice = self._run(query, [])
        if twice:
            raise StoreError(
                f"{self.address} has the id {twice[0][0]!r} twice; the column of ids must have "
                "each once: name another by id=COLUMN."
            )


def _prepare(connection: Connection) -> None:
    prepare(connection)
    # Whatever a filter calls, nothing is changed.
    connection.execute(SQL("set default_transaction_read_only = on"))
