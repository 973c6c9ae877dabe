"""A table of one's own in PostgreSQL, with a column of pgvector for each version.

Every search compares all rows that it may return: indexes of the table are for one metric and one
column, and none are for rows that have a NULL in another column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, ClassVar, Self, TypeVar
from uuid import UUID

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.adopted_store import (
    AdoptedNames,
    AdoptedStore,
    TableDriver,
    TableFacts,
    canonical_uuids,
    id_twice,
    no_column,
    read_names,
    split_address,
    wrong_address,
    wrong_column,
)
from evergram.stores.filters import (
    Condition,
    Filter,
    check_allowed,
    check_closed,
    of_other_type,
    read_conditions,
    type_of,
)
from evergram.stores.postgres.connection import (
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

# After the import above, which says so where psycopg is missing.
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal  # isort: skip

T = TypeVar("T")

SCHEME = "pgvector-table:"
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
# Columns that conditions can be on.
COMPARABLE = ("bool", *NUMBERS, *TEXTS)
# Strings and quoted names.
_STRINGS = r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\w*)\$.*?\$\1\$"""
# How texts are written that are compared with such columns.
_EXAMPLES = {
    "date": "2026-01-31",
    "timestamp": "2026-01-31 12:00:00",
    "timestamptz": "2026-01-31 12:00:00+01:00",
    "uuid": "0f8fad5b-d9cb-469f-a165-70867728950e",
}
SIGNS = {"gt": SQL(" > "), "gte": SQL(" >= "), "lt": SQL(" < "), "lte": SQL(" <= ")}


@dataclass(frozen=True)
class PgvectorFacts(TableFacts):
    """Besides: the SQL type that ids are compared as, the type of every column, and whether a
    constraint or an index keeps ids unique."""

    sent: str
    types: dict[str, str]
    unique: bool


class PgvectorTable(TableDriver):
    form = (
        "pgvector-table:postgresql://USER@HOST/DATABASE#table=TABLE&id=COLUMN&v0=COLUMN, with "
        "v1=COLUMN … for later versions, and if need be schema=SCHEMA and filter=COLUMN,COLUMN; "
        "write & in a name as %26, # as %23, a comma as %2C and % as %25"
    )

    def __init__(self, params: dict[str, str], names: AdoptedNames) -> None:
        super().__init__(SCHEME + show_address(params, names.fragment), names)
        self._params, self._id = params, names.id or "id"
        self._connections: ConnectionPool | OneConnection
        self._connections = ConnectionPool(params, self.shown, _prepare)
        schema = names.others.get("schema")
        self._relation = Identifier(*([] if schema is None else [schema]), names.others["table"])
        # Of a driver of one moment; None where each call asks. And the last that were read.
        self._moment: PgvectorFacts | None = None
        self._last: PgvectorFacts
        # Of columns that do not say it, the dim of all their vectors.
        self._dims: dict[int, int] = {}

    @classmethod
    def parse(cls, address: str) -> tuple[Any, ...]:
        url, rest = split_address(address.removeprefix(SCHEME), cls.form)
        names = read_names(rest, "table", cls.form, ["schema"])
        params = read_url(url)
        if params is None:
            raise wrong_address("what stands before the # is not a PostgreSQL address", cls.form)
        return params, names

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self._params, self.names

    def facts(self) -> PgvectorFacts:
        if self._moment is not None:
            return self._moment
        self._last = self._connections.run(self._read_facts)
        return self._last

    def refuse_twice(self) -> None:
        if not self.facts().unique:
            query = (
                "select {shown_id} from {table} where {id} is not null group by {id}"
                " having count(*) > 1 limit 1"
            )
            for (key,) in self._ask(query):
                raise id_twice(self.shown, key)

    def filter_of(self, asked: Filter) -> tuple[Composable, list[Any]]:
        return sql_of(asked, self.facts().types, self.names.filters)

    def at_one_moment(self, work: Callable[[Self], T]) -> T:
        def begin(connection: Connection) -> T:
            moment = copy(self)
            moment._connections = OneConnection(connection)
            try:
                connection.execute(SQL("begin isolation level repeatable read, read only"))
                moment._moment = moment.facts()
                return work(moment)
            finally:
                if not connection.closed:
                    connection.rollback()

        return self._connections.run(begin)

    def rows(
        self, version: int, ids: pa.Array | None, chosen: Any, size: int, *, own: bool = True
    ) -> Iterator[Rows]:
        query = "select {shown_id}, vector_send({column}::vector) from {table} where {rows}"
        if ids is not None:
            query += " and {id} = any(%s::{sent}[])"
            yield self._block(version, self._ask(query, version, chosen, [self._ids(ids)], own=own))
            return
        # Page by page in the order of ids: no transaction stays open.
        last: list[Any] = []
        while True:
            after = " and {id} > %s::{sent}" if last else ""
            page = f"{query}{after} order by {{id}} limit {size:d}"
            cells = self._ask(page, version, chosen, last, own=own)
            if cells:
                yield self._block(version, cells)
            if len(cells) < size:
                return
            last = [cells[-1][0]]

    def count(self, version: int, chosen: Any) -> int:
        ((rows,),) = self._ask("select count(*) from {table} where {rows}", version, chosen)
        return int(rows)

    def has_rows(self, version: int, chosen: Any) -> bool:
        return bool(self._ask("select 1 from {table} where {rows} limit 1", version, chosen))

    def nearest(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None, chosen: Any
    ) -> list[Hits]:
        among = "" if ids is None else " and {id} = any(%s::{sent}[])"
        # Half precision is compared as what it is in single precision.
        cast = SQL("vector({dim})").format(dim=Literal(queries.shape[1]))
        stored = name_of(self.names.vectors[version]) + SQL("::") + cast
        distance = SQL(DISTANCES[metric]).format(stored=stored, query=SQL("%s::") + cast)
        # With `+ 0` the order is that of no index, and all rows are compared.
        query = (
            "select {shown_id}, {distance} from {table} where {rows}"
            f"{among} order by {{distance}} + 0, {{id}} limit {k:d}"
        )
        filtered, results = [] if ids is None else [self._ids(ids)], []
        for one in queries:
            sent = vector(one)
            after = [*filtered, sent]
            cells = self._ask(query, version, chosen, after, before=[sent], distance=distance)
            keys = pa.array([key for key, _ in cells], self._last.id_type)
            distances = np.array([d for _, d in cells], dtype=np.float64)
            scores = {"ip": -distances, "cosine": 1 - distances, "l2": 0.0 - distances**2}[metric]
            versions = np.full(len(keys), version, np.int64)
            results.append(Hits(keys, scores.astype(np.float32), versions))
        return results

    def close(self) -> None:
        self._connections.close()

    def _ask(
        self,
        text: str,
        version: int | None = None,
        chosen: Any = None,
        after: list[Any] | None = None,
        *,
        before: list[Any] | None = None,
        own: bool = True,
        **parts: Composable,
    ) -> list[Any]:
        """Return the rows of a query over the rows of a version, which `{rows}` stands for.

        Args:
            before, after: parameters that stand before those of the filter, and after them.
        """
        facts, condition, values = self._last, SQL("true") + SQL(""), list(before or ())
        if version is not None:
            parts["column"] = name_of(self.names.vectors[version])
            condition = self._condition(version, own)
        if chosen is not None:
            condition += SQL(" and ") + chosen[0]
            values += chosen[1]
        shown_id = SQL("::bigint" if pa.types.is_integer(facts.id_type) else "::text")
        query = SQL(text).format(
            table=SQL(self._relation.as_string(None).replace("%", "%%")),
            id=name_of(self._id),
            shown_id=name_of(self._id) + shown_id,
            sent=SQL(facts.sent),
            rows=condition,
            **parts,
        )
        return self._run(query, values + list(after or ()))

    def _condition(self, version: int, own: bool) -> Composed:
        """Return the condition of the rows of a version, or of all with its vector."""
        column = name_of(self.names.vectors[version])
        condition = SQL("{} is not null and {} is not null").format(name_of(self._id), column)
        for later, other in self.names.vectors.items() if own else ():
            if later > version:
                condition += SQL(" and {} is null").format(name_of(other))
        return condition

    def _run(self, query: Composed, values: list[Any]) -> list[Any]:
        return self._connections.run(
            lambda connection: connection.execute(query, values, binary=True).fetchall()
        )

    def _ids(self, ids: pa.Array) -> Raw | list[str]:
        """Return ids as a parameter, without texts that the column cannot hold."""
        if pa.types.is_integer(ids.type):
            return integers(ids.to_numpy())
        texts = [text for text in ids.to_pylist() if "\0" not in text]
        return canonical_uuids(texts) if self._last.sent == "uuid" else texts

    def _block(self, version: int, cells: list[tuple[Any, ...]]) -> Rows:
        keys, raw = zip(*cells, strict=True) if cells else ((), ())
        facts = self._last
        dim = facts.dims[version] or 0
        if any(len(one) != 4 * dim + 4 for one in raw):
            self._dims.pop(version, None)  # looked up again by the next call
            raise IntegrityError(
                f"Vectors of the column {self.names.vectors[version]!r} of {self.shown} differ in "
                f"dim; those of before had {dim}."
            )
        values = np.frombuffer(b"".join(raw), dtype=layout(dim))["values"].reshape(-1, dim)
        return Rows(version, pa.array(keys, facts.id_type), values.astype(np.float32))

    def _read_facts(self, connection: Connection) -> PgvectorFacts:
        table = self._relation.as_string(connection)
        columns = connection.execute(
            SQL(
                "select attname::text, typname::text, atttypmod, exists (select from pg_index where"
                " indrelid = attrelid and indisunique and indisvalid and indpred is null and"
                " indexprs is null and indnkeyatts = 1 and indkey[0] = attnum) from pg_attribute"
                " join pg_type on pg_type.oid = atttypid"
                " where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped"
            ),
            [table],
        ).fetchall()
        if not columns:
            raise DataError(
                f"There is no table of that name at {self.shown}; give its schema by schema=NAME "
                "if it is not in the search path, and its name in the case in which it was created."
            )
        types = {name: kind for name, kind, _, _ in columns}
        uses = [([self._id], "for ids", tuple(ID_TYPES))]
        uses.append((list(self.names.vectors.values()), "for vectors", ("vector", "halfvec")))
        uses.append((list(self.names.filters), "for filters", COMPARABLE))
        for names, use, allowed in uses:
            for name in names:
                if name not in types:
                    raise no_column(self.shown, name, use, list(types))
                if types[name] not in allowed:
                    words = f"one of {', '.join(allowed)} {use}"
                    raise wrong_column(self.shown, name, types[name], words)
        said = {name: int(size) if size >= 1 else None for name, _, size, _ in columns}
        unique = {name: unique for name, _, _, unique in columns}
        dims = {
            version: said[column] or self._read_dim(connection, version)
            for version, column in self.names.vectors.items()
        }
        return PgvectorFacts(*_id_facts(types[self._id], dims), types, unique[self._id])

    def _read_dim(self, connection: Connection, version: int) -> int | None:
        """Return the dim of all vectors of a column that does not say it; None without any."""
        if version not in self._dims:
            column = self.names.vectors[version]
            query = SQL(
                "select distinct vector_dims({0}) from {1} where {0} is not null limit 2"
            ).format(Identifier(column), self._relation)
            dims = [dim for (dim,) in connection.execute(query).fetchall()]
            if len(dims) > 1:
                raise StoreError(
                    f"Vectors of the column {column!r} of {self.shown} have {min(dims)} and "
                    f"{max(dims)} dims; a column holds vectors of one version, all of one dim."
                )
            if not dims:
                return None
            self._dims[version] = dims[0]
        return self._dims[version]


def _id_facts(kind: str, dims: dict[int, int | None]) -> tuple[pa.DataType, Any, str]:
    id_type, sent = ID_TYPES[kind]
    return id_type, dims, sent


def _prepare(connection: Connection) -> None:
    prepare(connection)
    # Whatever a filter calls, nothing is changed.
    connection.execute(SQL("set default_transaction_read_only = on"))


class AdoptedTable(AdoptedStore):
    kind: ClassVar[str] = "pgvector-table"
    driver = PgvectorTable


def name_of(column: str) -> Identifier:
    """Return a column's name as it is written in a statement with parameters, where % is %%."""
    return Identifier(column.replace("%", "%%"))


def sql_of(
    asked: Filter, columns: Mapping[str, str], allowed: Sequence[str]
) -> tuple[Composable, list[Any]]:
    """Return a filter as a boolean expression in parentheses, and its parameters.

    Args:
        asked: conditions; or SQL, or SQL and its parameters, which is used as it is.
        columns: of the table, with their types.
        allowed: columns that conditions may name.
    Raises: DataError: the filter is wrong.
    """
    if isinstance(asked, Mapping):
        conditions = read_conditions(asked)
        parts = [_condition(condition, columns, allowed) for condition in conditions]
        together = SQL("({})").format(SQL(" and ").join(parts))
        return together, [_sent(condition, columns[condition.field]) for condition in conditions]
    match asked:
        case str(text):
            bound: Sequence[Any] = ()
        case (str(text), list() | tuple() as bound):
            pass
        case _:
            text = ""
    if not text.strip() or "\0" in text:
        raise DataError(
            "A filter is a dictionary of conditions, or in SQL a boolean expression, such as "
            "\"category = 'news'\", or a pair of one with %s in it and a list of its values."
        )
    check_closed(text, _STRINGS)
    # Without parameters of its own, a % is a %; a comment must not swallow the parenthesis.
    text = text if bound else text.replace("%", "%%")
    return SQL("(\n") + SQL(text) + SQL("\n)"), list(bound)


def _condition(
    condition: Condition, columns: Mapping[str, str], allowed: Sequence[str]
) -> Composable:
    """Return one condition with one placeholder, of a list of its values."""
    check_allowed(condition, allowed)
    field = condition.field
    kind = _sent_as(condition, columns[field])
    column = name_of(field)
    array = SQL("%s::") + SQL(kind) + SQL("[]")
    if condition.operator == "in":
        return column + SQL(" = any(") + array + SQL(")")
    return column + SIGNS[condition.operator] + SQL("(") + array + SQL(")[1]")


def _check_text(field: str, column: str, text: str) -> None:
    """Refuse a text that is no date, time or UUID where the column has these.

    PostgreSQL would take words, such as "yesterday", for some.
    """
    if column not in _EXAMPLES:
        return
    try:
        if column == "uuid":
            UUID(text)
        elif not re.match(r"\d{4}-\d\d-\d\d(?![^T ])", text):
            raise ValueError(text)
        else:
            (date if column == "date" else datetime).fromisoformat(text)
    except ValueError:
        raise DataError(
            f"A filter compares the field {field[:80]!r}, of type {column}, with {text[:80]!r}; "
            f"write it as {_EXAMPLES[column]!r}."
        ) from None


def _sent(condition: Condition, column: str) -> list[Any]:
    """Return a condition's values as they are bound, numbers all of one type: a `real` column is
    compared in its own precision, and PostgreSQL refuses numbers beyond it where here they are
    infinite, or 0."""
    values = list(condition.values)
    if type_of(condition) != "number":
        return values
    if column in ("float4", "float8"):
        with np.errstate(over="ignore", under="ignore"):
            narrow = np.float32 if column == "float4" else np.float64
            return [float(narrow(float(value))) for value in values]
    whole = all(isinstance(value, int) for value in values)
    return values if whole else [Decimal(value) for value in values]


def _sent_as(condition: Condition, column: str) -> str:
    """Return the SQL type that values are compared as with a column of a type."""
    values = condition.values
    sort = type_of(condition)
    if column == "bool" and sort == "boolean" and condition.operator == "in":
        return "boolean"
    if column in NUMBERS and sort == "number":
        if column in WHOLE:
            # A fraction must not be rounded to a whole number that rows have.
            whole = all(isinstance(value, int) for value in values)
            return "bigint" if whole else "numeric"
        return {"float4": "real", "float8": "double precision"}.get(column, "numeric")
    if column in TEXTS and sort == "text":
        for value in values:
            _check_text(condition.field, column, str(value))
        return {"varchar": "text", "name": "text", "bpchar": "bpchar"}.get(column, column)
    raise of_other_type(condition, column)
