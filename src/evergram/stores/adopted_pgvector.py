"""A table of the user's own in PostgreSQL, with a column of pgvector for each version.

Every search compares all rows that it may return: indexes of the table are for one metric and one
column, and none are for rows that have a NULL in another column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, StoreError
from evergram.stores.adopted_store import (
    AdoptedNames,
    AdoptedStore,
    TableFacts,
    canonical_uuids,
    check_column,
    wrong_address,
)
from evergram.stores.filters import SIGNS, Condition, of_other_type, type_of
from evergram.stores.postgres_connection import (
    Connection,
    ConnectionPool,
    OneConnection,
    Raw,
    integers,
    layout,
    prepare,
    read_url,
    show_address,
    vector,
)
from evergram.stores.rows import Floats, Hits, Rows
from evergram.stores.store import ReadableStore

# After the import above, which says so where psycopg is missing.
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal  # isort: skip

T = TypeVar("T")

# Types of ids, with the type that a store holds and the one that ids are sent as.
ID_TYPES = {
    **dict.fromkeys(("int2", "int4", "int8"), (pa.int64(), "bigint")),
    **dict.fromkeys(("text", "varchar"), (pa.string(), "text")),
    "uuid": (pa.string(), "uuid"),
}
# The smallest distance is best. A row of zeros has no cosine, and the distance is NaN: its cosine
# is 0.
DISTANCES = {
    "ip": "({stored} <#> {query})",
    "cosine": "coalesce(nullif({stored} <=> {query}, 'NaN'), 1)",
    "l2": "({stored} <-> {query})",
}
WHOLE = ("int2", "int4", "int8")
NUMBERS = (*WHOLE, "numeric", "float4", "float8")
TEXTS = ("text", "varchar", "bpchar", "uuid", "date", "timestamp", "timestamptz", "name")


class AdoptedTable(AdoptedStore):
    kind: ClassVar[str] = "pgvector-table"
    form: ClassVar[str] = (
        "pgvector-table:postgresql://USER@HOST/DATABASE#table=TABLE&id=COLUMN&v0=COLUMN, with "
        "v1=COLUMN … for later versions, and if need be schema=SCHEMA and filter=COLUMN,COLUMN; "
        "write & in a name as %26, # as %23, a comma as %2C and % as %25"
    )
    keys: ClassVar[tuple[str, ...]] = ("table", "id", "schema", "filter")

    @classmethod
    def _place_of(cls, place: str, names: AdoptedNames) -> dict[str, str]:
        params = read_url(place)
        if params is None:
            raise wrong_address("what stands before the # is not a PostgreSQL address", cls.form)
        return params

    @staticmethod
    def _shown(where: Any) -> str:
        return show_address(where, "").removesuffix("#")

    @property
    def _anywhere(self) -> Any:
        return self._where

    def _connect(self) -> None:
        self._id = self._names.id or "id"
        schema = [] if self._names.schema is None else [self._names.schema]
        self._relation = Identifier(*schema, self._names.table)
        self._connections: ConnectionPool | OneConnection
        self._connections = ConnectionPool(self._where, self.address, prepare)

    def _disconnect(self) -> None:
        self._connections.close()

    def _look(self) -> TableFacts:
        return self._connections.run(self._read_facts)

    def _filter_of(self, conditions: list[Condition]) -> tuple[Composable, list[Any]]:
        return sql_of(conditions, self._known.types)

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        def begin(connection: Connection) -> T:
            view = self._at_this_moment()
            view._connections = OneConnection(connection)
            try:
                connection.execute(SQL("begin isolation level repeatable read, read only"))
                view._known = view._look()
                return work(view)
            finally:
                if not connection.closed:
                    connection.rollback()

        return self._connections.run(begin)

    def _rows(
        self, version: int, ids: pa.Array | None, size: int, *, own: bool = True
    ) -> Iterator[Rows]:
        query = "select {shown_id}, vector_send({column}::vector) from {table} where {rows}"
        if ids is not None:
            query += " and {id} = any(%s::{sent}[])"
            yield self._block(version, self._ask(query, version, [self._ids(ids)], own=own))
            return
        # Page by page in the order of ids: no transaction stays open.
        last: list[Any] = []
        while True:
            after = " and {id} > %s::{sent}" if last else ""
            page = f"{query}{after} order by {{id}} limit {size:d}"
            cells = self._ask(page, version, last, own=own)
            if cells:
                yield self._block(version, cells)
            if len(cells) < size:
                return
            last = [cells[-1][0]]

    def _count(self, version: int) -> int:
        ((rows,),) = self._ask("select count(*) from {table} where {rows}", version)
        return int(rows)

    def _has_rows(self, version: int) -> bool:
        return bool(self._ask("select 1 from {table} where {rows} limit 1", version))

    def _by_database(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[Hits]:
        among = "" if ids is None else " and {id} = any(%s::{sent}[])"
        # Half precision is compared as what it is in single precision.
        cast = SQL("vector({dim})").format(dim=Literal(queries.shape[1]))
        stored = name_of(self._names.vectors[version]) + SQL("::") + cast
        distance = SQL(DISTANCES[metric]).format(stored=stored, query=SQL("%s::") + cast)
        # With `+ 0` the order is that of no index, and all rows are compared.
        query = (
            "select {shown_id}, {distance} from {table} where {rows}"
            f"{among} order by {{distance}} + 0, {{id}} limit {k:d}"
        )
        filtered, results = [] if ids is None else [self._ids(ids)], []
        for one in queries:
            sent = vector(one)
            cells = self._ask(query, version, [*filtered, sent], before=[sent], distance=distance)
            keys = pa.array([key for key, _ in cells], self._id_type)
            distances = np.array([d for _, d in cells], dtype=np.float64)
            scores = {"ip": -distances, "cosine": 1 - distances, "l2": 0.0 - distances**2}[metric]
            versions = np.full(len(keys), version, np.int64)
            results.append(Hits(keys, scores.astype(np.float32), versions))
        return results

    def _ask(
        self,
        text: str,
        version: int | None = None,
        after: Sequence[Any] = (),
        *,
        before: Sequence[Any] = (),
        own: bool = True,
        **parts: Composable,
    ) -> list[Any]:
        """Return the rows of a query over the rows of a version, which `{rows}` stands for, with
        parameters before and after those of the filter."""
        condition, values = SQL("true") + SQL(""), list(before)
        if version is not None:
            parts["column"] = name_of(self._names.vectors[version])
            condition = self._condition(version, own)
            if self._chosen is not None:
                condition += SQL(" and ") + self._chosen[0]
                values += self._chosen[1]
        shown_id = SQL("::bigint" if pa.types.is_integer(self._id_type) else "::text")
        query = SQL(text).format(
            table=SQL(self._relation.as_string(None).replace("%", "%%")),
            id=name_of(self._id),
            shown_id=name_of(self._id) + shown_id,
            sent=SQL(self._sent),
            rows=condition,
            **parts,
        )
        values += after
        return self._connections.run(
            lambda connection: connection.execute(query, values, binary=True).fetchall()
        )

    @property
    def _sent(self) -> Any:
        """The type that ids are sent as."""
        return ID_TYPES[self._known.types[self._id]][1]

    def _condition(self, version: int, own: bool) -> Composed:
        """Return the condition of the rows of a version, or of all with its vector."""
        column = name_of(self._names.vectors[version])
        condition = SQL("{} is not null and {} is not null").format(name_of(self._id), column)
        for later, other in self._names.vectors.items() if own else ():
            if later > version:
                condition += SQL(" and {} is null").format(name_of(other))
        return condition

    def _ids(self, ids: pa.Array) -> Raw | list[str]:
        """Return ids as a parameter, without texts that the column cannot hold."""
        if pa.types.is_integer(ids.type):
            return integers(ids.to_numpy())
        texts = [text for text in ids.to_pylist() if "\0" not in text]
        return canonical_uuids(texts) if self._sent == "uuid" else texts

    def _block(self, version: int, cells: list[tuple[Any, ...]]) -> Rows:
        keys, raw = zip(*cells, strict=True) if cells else ((), ())
        dim = self._known.dims[version]
        values = np.frombuffer(b"".join(raw), dtype=layout(dim))["values"].reshape(-1, dim)
        return Rows(version, pa.array(keys, self._id_type), values.astype(np.float32))

    def _read_facts(self, connection: Connection) -> TableFacts:
        columns = connection.execute(
            SQL(
                "select attname::text, typname::text, atttypmod from pg_attribute"
                " join pg_type on pg_type.oid = atttypid"
                " where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped"
            ),
            [self._relation.as_string(connection)],
        ).fetchall()
        if not columns:
            raise DataError(
                f"There is no table of that name at {self.address}; give its schema by schema=NAME "
                "if it is not in the search path, and its name in the case in which it was created."
            )
        types = {name: kind for name, kind, _ in columns}
        uses: list[tuple[Sequence[str], str, Sequence[str]]] = [
            ([self._id], "for ids", tuple(ID_TYPES)),
            (list(self._names.vectors.values()), "for vectors", ("vector", "halfvec")),
            (self._names.filters, "for filters", ("bool", *NUMBERS, *TEXTS)),
        ]
        for names, use, allowed in uses:
            for name in names:
                words = f"one of {', '.join(allowed)} {use}"
                check_column(self.address, name, types, allowed.__contains__, words)
        said = {name: int(size) for name, _, size in columns}
        dims: dict[int, int] = {}
        for version, column in self._names.vectors.items():
            if said[column] < 1:
                raise StoreError(
                    f"The column {column!r} of {self.address} does not say the dim of its vectors: "
                    f"alter its type to {types[column]}(D)."
                )
            dims[version] = said[column]
        return TableFacts(ID_TYPES[types[self._id]][0], dims, types)


def name_of(column: str) -> Identifier:
    """Return a column's name as it is written in a statement with parameters, where % is %%."""
    return Identifier(column.replace("%", "%%"))


def sql_of(conditions: list[Condition], columns: Mapping[str, str]) -> tuple[Composable, list[Any]]:
    """Return conditions as a boolean expression, and its parameters, one for each: a list of its
    values. Raises: DataError: a value cannot be compared with its column."""
    parts, bound = [], []
    for condition in conditions:
        kind, values = _compared(condition, columns[condition.field])
        form = "{} = any(%s::{}[])"
        if condition.operator != "in":
            form = f"{{}} {SIGNS[condition.operator]} (%s::{{}}[])[1]"
        parts.append(SQL(form).format(name_of(condition.field), SQL(kind)))
        bound.append(values)
    return SQL(" and ").join(parts), bound


def _compared(condition: Condition, column: str) -> tuple[Any, list[Any]]:
    """Return the SQL type that values are compared as with a column of a type, and the values."""
    values, sort = list(condition.values), type_of(condition)
    whole = all(isinstance(value, int) for value in values)
    if sort == "boolean" and column == "bool" and condition.operator == "in":
        return "boolean", values
    if sort == "number" and column in ("float4", "float8"):
        # In the column's own precision; a number beyond it is infinite, which PostgreSQL takes.
        narrow = np.float32 if column == "float4" else float
        with np.errstate(over="ignore", under="ignore"):
            return column, [float(narrow(float(value))) for value in values]
    if sort == "number" and column in NUMBERS:
        # A fraction must not be rounded to a whole number that rows have.
        kind = "bigint" if whole and column in WHOLE else "numeric"
        return kind, values if whole else [Decimal(str(value)) for value in values]
    if sort == "text" and column in TEXTS:
        return {"varchar": "text", "name": "text"}.get(column, column), values
    raise of_other_type(condition, column)
