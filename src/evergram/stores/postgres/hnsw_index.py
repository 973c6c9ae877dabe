"""pgvector's HNSW index of the rows of one version, of whole vectors or of halves of them."""

from __future__ import annotations

from dataclasses import dataclass

from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.postgres.connection import Connection
from evergram.stores.postgres.tables import prepare
from evergram.stores.store import Space

# After the import above, which says so where psycopg is missing.
from psycopg.sql import SQL, Composed, Identifier, Literal  # isort: skip


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
