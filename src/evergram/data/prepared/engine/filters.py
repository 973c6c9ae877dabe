"""Order the table `interactions` and leave rows out of it, all inside the database.

Each step makes a new table in the order of the old one; `rowid` is the place of a row.
"""

from __future__ import annotations

from evergram.data.prepared.engine.database import Database
from evergram.errors import DataError


def sort_by_time(database: Database) -> None:
    """Order the interactions by time; those of one time keep their order."""
    _replace(database, "SELECT * FROM interactions ORDER BY time, rowid")


def drop_repeats(database: Database) -> int:
    """Keep the first interaction of each pair. Returns: the rows that were left out."""
    before = database.number("SELECT count(*) FROM interactions")
    database.run(
        "CREATE TABLE first_rows AS SELECT min(rowid) AS first FROM interactions "
        "GROUP BY query, candidate"
    )
    kept = database.number("SELECT count(*) FROM first_rows")
    if kept < before:
        _replace(
            database,
            "SELECT i.* FROM interactions i JOIN first_rows f ON i.rowid = f.first "
            "ORDER BY i.rowid",
        )
    database.run("DROP TABLE first_rows")
    return before - kept


def drop_pairs(database: Database, table: str) -> int:
    """Leave out the interactions whose pair (query, candidate) is in a table.

    Returns: the rows that were left out.
    """
    before = database.number("SELECT count(*) FROM interactions")
    _replace(
        database,
        f"SELECT i.* FROM interactions i ANTI JOIN {table} o "
        "ON i.query = o.query AND i.candidate = o.candidate ORDER BY i.rowid",
    )
    return before - database.number("SELECT count(*) FROM interactions")


def keep_core(database: Database, k: int) -> int:
    """Keep the largest part of the interactions in which each query and each candidate has k.

    Rows of an entity with fewer are left out, until no entity has fewer. Which part is left does
    not depend on the order.

    Args:
        k: counts the interactions of earlier parts, too: `known_query (id, count)` and
            `known_candidate` hold those.
    Returns: the rows that were left out.
    Raises: DataError: no interaction is left.
    """
    before = database.number("SELECT count(*) FROM interactions")
    for side in ("query", "candidate"):
        database.run(f"CREATE TABLE few_{side} AS SELECT {side} AS id FROM interactions LIMIT 0")
    left = "interactions i ANTI JOIN few_query q ON i.query = q.id "
    left += "ANTI JOIN few_candidate c ON i.candidate = c.id"
    changed = True
    while changed:
        changed = False
        for side in ("query", "candidate"):
            sizes = [database.number(f"SELECT count(*) FROM few_{side}")]
            database.run(
                f"INSERT INTO few_{side} SELECT n.id FROM "
                f"(SELECT i.{side} AS id, count(*) AS count FROM {left} GROUP BY i.{side}) n "
                f"LEFT JOIN known_{side} k ON n.id = k.id "
                f"WHERE n.count + coalesce(k.count, 0) < {k}"
            )
            sizes.append(database.number(f"SELECT count(*) FROM few_{side}"))
            changed |= sizes[1] > sizes[0]
    _replace(database, f"SELECT i.* FROM {left} ORDER BY i.rowid")
    after = database.number("SELECT count(*) FROM interactions")
    for side in ("query", "candidate"):
        database.run(f"DROP TABLE few_{side}")
    if not after:
        raise DataError(
            f"No interaction is left with k_core (--k-core) {k}; give a smaller number."
        )
    return before - after


def _replace(database: Database, query: str) -> None:
    database.run(f"CREATE TABLE replaced AS {query}")
    database.run("DROP TABLE interactions")
    database.run("ALTER TABLE replaced RENAME TO interactions")
