"""The address of a table of somebody's own in PostgreSQL, and what the server says of it."""

from __future__ import annotations

from dataclasses import dataclass

from evergram.errors import DataError, StoreError
from evergram.stores.adopted_address import (
    canonical_uuids,
    read_names,
    split_address,
    wrong_address,
)
from evergram.stores.postgres.connection import Connection, read_url, show_address
from evergram.stores.postgres.distances import name_of
from evergram.stores.postgres.sql_filter import COMPARABLE

# After the import above, which says so where psycopg is missing.
from psycopg.sql import SQL, Composed, Identifier  # isort: skip

SCHEME = "pgvector-table:"
FORM = (
    "pgvector-table:postgresql://USER@HOST/DATABASE#table=TABLE&id=COLUMN&v0=COLUMN, with v1=COLUMN"
    " … for later versions, and if need be schema=SCHEMA and filter=COLUMN,COLUMN; write & in a "
    "name as %26, # as %23, a comma as %2C and % as %25"
)
# Types of ids, with the type that a store holds and the one that ids are sent as.
ID_TYPES = {
    "int2": ("int64", "bigint"),
    "int4": ("int64", "bigint"),
    "int8": ("int64", "bigint"),
    "text": ("string", "text"),
    "varchar": ("string", "text"),
    "uuid": ("string", "uuid"),
}
VECTOR_TYPES = ("vector", "halfvec")


@dataclass(frozen=True)
class TableAddress:
    """What an address says.

    Args:
        params: of libpq.
        shown: the address without a password.
        schema: None takes the first of the connection's search path that has the table.
        vectors: version to the column of its vectors.
        filters: columns that filters may name.
    """

    params: dict[str, str]
    shown: str
    schema: str | None
    table: str
    id: str
    vectors: dict[int, str]
    filters: tuple[str, ...]

    @property
    def relation(self) -> Identifier:
        """The table's name."""
        return Identifier(*([] if self.schema is None else [self.schema]), self.table)

    @property
    def sql(self) -> SQL:
        """The table's name in a statement with parameters."""
        return SQL(self.relation.as_string(None).replace("%", "%%"))

    def own_rows(self, version: int) -> Composed:
        """Return the condition of the rows of a version: no newer one has a vector in them."""
        named = {"id": name_of(self.id), "column": name_of(self.vectors[version])}
        own = SQL("{id} is not null and {column} is not null").format(**named)
        for later, column in self.vectors.items():
            if later > version:
                own += SQL(" and {column} is null").format(column=name_of(column))
        return own


@dataclass(frozen=True)
class TableFacts:
    """What the server says of a table.

    Args:
        id_type: "int64" or "string".
        sent: the SQL type that ids are compared as.
        dims: version to the dim of its column; None where the column does not say.
        types: column to its type, of all columns.
        unique: whether a constraint or an index keeps ids unique.
    """

    id_type: str
    sent: str
    dims: dict[int, int | None]
    types: dict[str, str]
    unique: bool


def read_table_address(address: str) -> TableAddress:
    """Parse an address. Raises: DataError: it is wrong; it is not repeated, as there may be a
    password in it."""
    url, rest = split_address(address.removeprefix(SCHEME), FORM)
    names = read_names(rest, "table", FORM, ["schema"])
    params = read_url(url)
    if params is None:
        raise wrong_address("what stands before the # is no address of PostgreSQL", FORM)
    return TableAddress(
        params=params,
        shown=SCHEME + show_address(params, names.fragment),
        schema=names.others.get("schema"),
        table=names.others["table"],
        id=names.id or "id",
        vectors=names.vectors,
        filters=names.filters,
    )


def sendable(ids: list[str], sent: str) -> list[str]:
    """Return those of some ids that the column of ids can hold; no row has the others.

    Args:
        sent: the SQL type that they are compared as, text or uuid.
    """
    texts = [text for text in ids if "\0" not in text]
    return canonical_uuids(texts) if sent == "uuid" else texts


def read_facts(connection: Connection, address: TableAddress) -> TableFacts:
    """Return what the server says of a table.

    Raises: DataError: it is not there. StoreError: a column is not there, or has another type.
    """
    columns = connection.execute(
        SQL(
            "select attname::text, typname::text, atttypmod, attnum from pg_attribute"
            " join pg_type on pg_type.oid = atttypid"
            " where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped"
        ),
        [address.relation.as_string(connection)],
    ).fetchall()
    if not columns:
        raise DataError(
            f"There is no table of that name at {address.shown}; give its schema by schema=NAME "
            "if it is not in the search path, and its name in the case in which it was created."
        )
    types = {name: kind for name, kind, _, _ in columns}
    numbers = {name: number for name, _, _, number in columns}
    dims = {name: None if size < 1 else int(size) for name, _, size, _ in columns}
    _check(address, address.id, types, tuple(ID_TYPES), "for ids")
    for column in address.vectors.values():
        _check(address, column, types, VECTOR_TYPES, "for vectors")
    for column in address.filters:
        _check(address, column, types, COMPARABLE, "for filters")
    unique = connection.execute(
        SQL(
            "select 1 from pg_index where indrelid = to_regclass(%s) and indisunique and indisvalid"
            " and indpred is null and indexprs is null and indnkeyatts = 1 and indkey[0] = %s"
        ),
        [address.relation.as_string(connection), numbers[address.id]],
    ).fetchone()
    id_type, sent = ID_TYPES[types[address.id]]
    by_version = {version: dims[column] for version, column in address.vectors.items()}
    return TableFacts(id_type, sent, by_version, types, unique is not None)


def _check(
    address: TableAddress, column: str, types: dict[str, str], allowed: tuple[str, ...], use: str
) -> None:
    """Refuse a column that is not there, or of a type that is not allowed. Raises: StoreError."""
    if column not in types:
        raise StoreError(
            f"{address.shown} names the column {column!r} {use}, which the table does not have; "
            f"it has {', '.join(sorted(types))}."
        )
    if types[column] not in allowed:
        raise StoreError(
            f"The column {column!r} of {address.shown} is of type {types[column]}; {use} it must "
            f"be one of {', '.join(allowed)}."
        )
