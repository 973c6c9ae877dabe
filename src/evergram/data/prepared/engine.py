"""DuckDB with bounded memory, and the steps that order, filter and number interactions.

The table `interactions` has one column a role, and `rowid` is the place of a row. Each step makes
it anew in the order of the old one. The ids of earlier parts are in `known_query` and
`known_candidate`, each (id, row, count).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from evergram.data.prepared.record import SIDES
from evergram.errors import DataError

# Rows that are fetched at once.
FETCHED = 1 << 17


class Database(closing[Any]):
    """A database of tables that may exceed memory; use it as a context manager.

    Args:
        folder: exists; its maker removes it with everything in it.
        memory: bytes that the engine may hold.
    Raises: DataError: DuckDB is not installed.
    """

    def __init__(self, folder: Path, memory: int, threads: int) -> None:
        try:
            import duckdb
        except ImportError:
            raise DataError(
                "A corpus is prepared by DuckDB, which is not installed: "
                "pip install 'evergram[prepare]'."
            ) from None
        self._errors: type[Exception] = duckdb.Error
        self._exhaustion = (duckdb.OutOfMemoryException, duckdb.IOException)
        self._memory, self._folder = memory, folder
        self._connection: Any = duckdb.connect(
            str(folder / "interactions.duckdb"),
            config={
                "memory_limit": f"{memory >> 10}KiB",
                "threads": threads,
                "temp_directory": str(folder / "spilled"),
                "preserve_insertion_order": True,
                # Nothing is fetched from outside, and no file is read by a name in a statement.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        super().__init__(self._connection)

    def __enter__(self) -> Database:
        return self

    def run(self, *statements: str) -> None:
        """Run statements. Raises: DataError: the memory or the disk does not suffice."""
        for statement in statements:
            self.rows(statement)

    def create(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Make a table of batches, in their order; an error that they raise is raised as it is."""
        errors: list[Exception] = []

        def noted() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except Exception as error:  # of which the engine would tell only the text
                errors.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(schema, noted())
        self._connection.register("arrow_batches", reader)
        try:
            self.run(f"CREATE TABLE {table} AS SELECT * FROM arrow_batches")
        except Exception:
            if errors:
                raise errors[0] from None
            raise
        finally:
            self._connection.unregister("arrow_batches")

    def number(self, query: str) -> int:
        """Return the one whole number that a query selects; 0 for a null."""
        return int(self.rows(query)[0][0] or 0)

    def size(self, table: str) -> int:
        """Return the number of rows of a table."""
        return self.number(f"SELECT count(*) FROM {table}")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return all rows of a query, which are few."""
        try:
            rows: list[tuple[Any, ...]] = self._connection.execute(query).fetchall()
        except self._errors as error:
            raise self._refusal(error) from error
        return rows

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query."""
        try:
            yield from self._connection.sql(query).to_arrow_reader(FETCHED)
        except (self._errors, pa.ArrowException) as error:  # Arrow wraps errors of the engine
            raise self._refusal(error) from error

    def rewrite(self, query: str) -> int:
        """Make `interactions` what a query selects, and return how many rows fewer there are."""
        before = self.size("interactions")
        self.run(
            f"CREATE TABLE replaced AS {query}",
            "DROP TABLE interactions",
            "ALTER TABLE replaced RENAME TO interactions",
        )
        return before - self.size("interactions")

    def _refusal(self, error: Exception) -> DataError:
        """Return an error about memory or the disk; any other of the engine's as it is, briefly."""
        text = " ".join(str(error).split("\n")[0].split()).rstrip(".")
        if not isinstance(error, (*self._exhaustion, pa.ArrowException)):
            return DataError(f"The engine cannot use the data: {text}.")
        return DataError(
            f"The engine could not go on with {self._memory >> 20} MiB of memory and the disk of "
            f"{self._folder.parent} ({text}); give it more memory by --memory, or "
            "a disk with more room."
        )


def sort_by_time(database: Database) -> None:
    """Order the interactions by time; those of one time keep their order."""
    database.rewrite("SELECT * FROM interactions ORDER BY time, rowid")


def drop_repeats(database: Database) -> int:
    """Keep the first interaction of each pair, and return how many rows were left out."""
    return database.rewrite(
        "SELECT i.* FROM interactions i JOIN (SELECT min(rowid) AS first FROM interactions "
        "GROUP BY query, candidate) f ON i.rowid = f.first ORDER BY i.rowid"
    )


def drop_pairs(database: Database, table: str) -> int:
    """Leave out the interactions whose pair (query, candidate) is in a table, and return how many
    rows that are."""
    return database.rewrite(
        f"SELECT i.* FROM interactions i ANTI JOIN {table} o "
        "ON i.query = o.query AND i.candidate = o.candidate ORDER BY i.rowid"
    )


def keep_core(database: Database, k: int) -> int:
    """Keep the largest part of the interactions in which each query and each candidate has k,
    those of earlier parts counted too, and return how many rows were left out.

    Rows of an entity with fewer are left out, until no entity has fewer. Which part is left does
    not depend on the order.

    Raises: DataError: no interaction is left.
    """
    for side in SIDES:
        database.run(f"CREATE TABLE few_{side} AS SELECT {side} AS id FROM interactions LIMIT 0")
    left = (
        "interactions i ANTI JOIN few_query q ON i.query = q.id "
        "ANTI JOIN few_candidate c ON i.candidate = c.id"
    )
    few, before = 0, -1
    while few > before:
        before = few
        for side in SIDES:
            database.run(
                f"INSERT INTO few_{side} SELECT n.id FROM "
                f"(SELECT i.{side} AS id, count(*) AS count FROM {left} GROUP BY i.{side}) n "
                f"LEFT JOIN known_{side} k ON n.id = k.id "
                f"WHERE n.count + coalesce(k.count, 0) < {k}"
            )
        few = sum(database.size(f"few_{side}") for side in SIDES)
    dropped = database.rewrite(f"SELECT i.* FROM {left} ORDER BY i.rowid")
    database.run(*(f"DROP TABLE few_{side}" for side in SIDES))
    if not database.size("interactions"):
        raise DataError(
            f"No interaction is left with k_core (--k-core) {k}; give a smaller number."
        )
    return dropped


def number_ids(database: Database, *, shared: bool) -> None:
    """Make the tables of new ids, in the order of their first appearance, and of all, (id, row):
    `new_query` and `ids_query`, `new_candidate` and `ids_candidate`; shared ids have no
    `new_candidate`.

    Args:
        shared: both sides have the ids of both: as in `Corpus`, all of queries, and then those of
            candidates that are no queries'.
    """
    for side in SIDES:
        first = f"SELECT {side} AS id, min(rowid) AS first FROM interactions GROUP BY {side}"
        if shared and side == "candidate":
            database.run("CREATE VIEW ids_candidate AS SELECT * FROM ids_query")
            return
        if shared:
            first = (
                f"SELECT id, min(first) AS first FROM ({first} UNION ALL SELECT candidate, "
                "min(rowid) + (SELECT count(*) FROM interactions) FROM interactions "
                "GROUP BY candidate) GROUP BY id"
            )
        database.run(
            f"CREATE TABLE new_{side} AS SELECT n.id FROM ({first}) n "
            f"ANTI JOIN known_{side} k ON n.id = k.id ORDER BY n.first",
            f"CREATE TABLE ids_{side} AS SELECT id, row FROM known_{side} UNION ALL "
            f"SELECT id, rowid + (SELECT count(*) FROM known_{side}) FROM new_{side}",
        )
