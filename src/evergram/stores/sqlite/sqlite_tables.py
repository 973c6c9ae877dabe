"""The tables of a store in an SQLite file: its record, its spaces, and the rows of each space.

They are `NAME_record`, `NAME_spaces`, and `NAME_v3` for version 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from evergram.errors import FormatError, StoreError
from evergram.stores.store import ID_TYPES, Floats, Space

if TYPE_CHECKING:
    from apsw import Connection

FORMAT = 1

# Of a row whose length is in here, the distances of sqlite-vec neither overflow nor vanish.
SHORTEST, LONGEST = 1e-15, 1e15

# How many a float32 of sqlite-vec may be off, in units of its last place, for each coordinate.
UNIT = 2.0**-23
MORE = 8

RECORD = {"format", "id_type", "side"}

# The best rows by an upper bound of their score with a query of length 1, and with them all rows
# of extreme lengths, which have none. sqlite-vec has no inner product: ⟨q, z⟩ is ‖z‖ cos(q, z).
NEAREST = """
select rows.id, rows.vector, rows.checksum, best.bound from (
  select * from (
    select {key} as key, norm * (coalesce(1 - vec_distance_cosine(vector, ?), 0) + ?) as bound
    from {table} where norm is not null order by bound desc limit ?
  )
  union all select {key}, null from {table} where norm is null
) as best join {table} as rows on rows.{key} = best.key
"""


def create_tables(connection: Connection, name: str, id_type: str, shown: str) -> None:
    """Make the record of a store unless it is there, in a transaction that writes.

    Raises: StoreError: there are tables by the names that it would use.
    """
    if has_table(connection, f"{name}_record"):
        return
    refuse_others(connection, name, shown)
    connection.execute(
        f'create table "{name}_record" (format integer, id_type text, side text);'
        f'create table "{name}_spaces"'
        " (version integer primary key, dim integer, fingerprint text)"
    )
    connection.execute(f'insert into "{name}_record" values (?, ?, null)', (FORMAT, id_type))


def refuse_others(connection: Connection, name: str, shown: str) -> None:
    """Refuse a new store whose tables are there already: they are somebody's own.

    Raises: StoreError.
    """
    theirs = connection.execute(
        "select name from sqlite_master where lower(name) = lower(?)"
        " or lower(name) glob lower(?) || '_v[0-9]*'",
        (f"{name}_spaces", name),
    ).fetchall()
    if theirs:
        raise not_ours(str(theirs[0][0]), shown)


def create_space(connection: Connection, name: str, id_type: str, space: Space, shown: str) -> None:
    """Make the table of a space, in a transaction that writes, unless the space is there.

    Raises: StoreError: there is a table of its name.
    """
    spaces = f'"{name}_spaces"'
    there = connection.execute(f"select 1 from {spaces} where version = ?", (space.version,))
    if there.fetchall():
        return
    table = f"{name}_v{space.version}"
    if has_table(connection, table):
        raise not_ours(table, shown)
    # A text is beside a number that no VACUUM changes, so that pages of rows can go by it.
    number = id_type == "int64"
    keys = "id integer primary key" if number else "place integer primary key, id text unique"
    connection.execute(
        f'create table "{table}" ({keys}, vector blob, norm real, checksum integer);'
        f'create index "{table}_extreme" on "{table}" (norm) where norm is null'
    )
    values = (space.version, space.dim, space.fingerprint)
    connection.execute(f"insert into {spaces} values (?, ?, ?)", values)


def read_record(connection: Connection, name: str, shown: str) -> tuple[str, str | None] | None:
    """Return the type of a store's ids, and its side; None if there is no such store.

    Raises: FormatError: it is of a later format. StoreError: it is something else, or damaged.
    """
    table = f"{name}_record"
    if not has_table(connection, table):
        return None
    columns = {
        row[0] for row in connection.execute("select name from pragma_table_info(?)", (table,))
    }
    if columns != RECORD:
        raise not_ours(table, shown)
    rows = connection.execute(f'select format, id_type, side from "{table}"').fetchall()
    number, id_type, side = rows[0] if len(rows) == 1 else (None, None, None)
    if isinstance(number, int) and number > FORMAT:
        raise FormatError(
            f"{shown} has format {number}; this Evergram reads {FORMAT}: use a later Evergram."
        )
    known = number == FORMAT and id_type in ID_TYPES
    if not known or not (side is None or isinstance(side, str)):
        raise StoreError(f"The record of {shown} is damaged; restore the file from a copy.")
    return str(id_type), side


def read_spaces(connection: Connection, name: str, shown: str) -> dict[int, Space]:
    """Return a store's spaces by version, ascending. Raises: StoreError: one is damaged."""
    rows = connection.execute(
        f'select version, dim, fingerprint from "{name}_spaces" order by version'
    )
    spaces = {}
    for version, dim, fingerprint in rows:
        if not (isinstance(version, int) and isinstance(dim, int) and isinstance(fingerprint, str)):
            raise StoreError(f"A space of {shown} is damaged; restore the file from a copy.")
        spaces[version] = Space(version, dim, fingerprint)
    return spaces


def has_table(connection: Connection, table: str) -> bool:
    """Return whether there is a table; SQLite takes a and A for the same letter."""
    rows = connection.execute(
        "select 1 from sqlite_master where lower(name) = lower(?)", (table,)
    ).fetchall()
    return bool(rows)


def not_ours(table: str, shown: str) -> StoreError:
    """Return the error about a table that a store did not write."""
    return StoreError(
        f"There is a table {table} that {shown} did not write; give another name after #, or "
        "rename that table."
    )


def norms(vectors: Floats) -> list[float | None]:
    """Return the lengths [n] of vectors [n, D]; None for one that is not 0 and too short or too
    long for sqlite-vec's distances."""
    lengths: npt.NDArray[np.float64] = np.linalg.norm(vectors.astype(np.float64), axis=1)
    usual = (lengths == 0) | ((lengths >= SHORTEST) & (lengths <= LONGEST))
    return [float(n) if ok else None for n, ok in zip(lengths, usual, strict=True)]


def whole_number(cell: object) -> int:
    """Return the whole number in a cell. Raises: TypeError: it is damaged, and is none."""
    if not isinstance(cell, int):
        raise TypeError(f"a number is {type(cell).__name__}")
    return cell
