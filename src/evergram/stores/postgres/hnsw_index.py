"""pgvector's HNSW index of the rows of one version."""

from __future__ import annotations

from evergram.stores.postgres.connection import Connection
from evergram.stores.postgres.tables import prepare
from evergram.stores.store import Space

# After the import above, which says so where psycopg is missing.
from psycopg.sql import SQL, Identifier, Literal  # isort: skip


def build_hnsw(connection: Connection, name: str, space: Space) -> None:
    """Build the index of a space unless it is there or another process builds it.

    Args:
        name: of the store.
        space: whose vectors are indexed by inner product.
    """
    index = Identifier(f"{name}_v{space.version}_hnsw")
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
            " ((vector::vector({dim})) vector_ip_ops) where version = {version}"
        )
        connection.execute(
            create.format(
                name=index,
                table=Identifier(f"{name}_vectors"),
                dim=Literal(space.dim),
                version=Literal(space.version),
            )
        )
    finally:
        if not connection.closed:
            connection.execute(SQL("select pg_advisory_unlock(hashtext(%s))"), key)
            connection.execute(SQL("reset statement_timeout"))
            prepare(connection)
