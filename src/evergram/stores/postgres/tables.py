"""The tables of a store in PostgreSQL, and the settings of a connection to them."""

from __future__ import annotations

from evergram.errors import DataError, StoreError
from evergram.stores.postgres.connection import Connection

# After the import above, which says so where psycopg is missing.
import psycopg  # isort: skip
from psycopg.sql import SQL, Identifier  # isort: skip

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


def prepare(connection: Connection) -> None:
    """Apply the settings that every new connection begins with."""
    connection.execute(SETTINGS)


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
            index = Identifier(f"{name}_version")
            connection.execute(
                query.format(
                    table=table,
                    meta=meta,
                    side=_side_table(name),
                    id=COLUMNS[id_type],
                    index=index,
                )
            )


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
                f"The database has a table {name}{suffix} that is no store's: it lacks the column "
                f"{min(columns - {column for (column,) in there})}; give another name after #."
            )


def _side_table(name: str) -> Identifier:
    return Identifier(f"{name}_side")


def read_side(connection: Connection, name: str) -> str | None:
    """Return the side of a store; None where it is not set."""
    query = SQL("select side from {side}").format(side=_side_table(name))
    row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def write_side(connection: Connection, name: str, side: str) -> None:
    """Set the side of a store, unless it is set already."""
    insert = SQL("insert into {table} (side) values (%s) on conflict do nothing")
    connection.execute(insert.format(table=_side_table(name)), [side])


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
        raise DataError(f"There is no store at {shown}; create it first.")
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
            f"{shown} is no store: its table {name}_vectors has ids of type {column[0]}; give "
            "another name after #."
        )
    return kinds[column[0]], oid[0]
