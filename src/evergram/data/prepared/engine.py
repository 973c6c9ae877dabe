"""DuckDB with bounded memory: interactions are loaded, ordered and filtered, and ids numbered.

The table `interactions` has one column a role. Each step makes it anew in the order of the old
one; `rowid` is the place of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evergram.data.prepared.record import SIDES, SideName
from evergram.data.reading.interaction_source import Interactions
from evergram.errors import DataError

# Rows that are fetched at once.
FETCHED = 1 << 17
# Seconds between two lines of progress.
EVERY = 5.0


class Database:
    """A database of tables that may exceed memory.

    Rows of a table that is made in an order keep it, and `rowid` counts them from 0.

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

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def run(self, statement: str, **tables: Any) -> None:
        """Run a statement that may name Arrow tables or readers.

        Raises: DataError: the memory or the disk does not suffice.
        """
        for name, table in tables.items():
            self._connection.register(name, table)
        try:
            self._connection.execute(statement)
        except self._errors as error:
            raise self._exhausted(error) from error
        finally:
            for name in tables:
                self._connection.unregister(name)

    def create(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Make a table of batches, in their order; an error that they raise is raised as it is."""
        errors: list[Exception] = []

        def kept() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except Exception as error:  # of which the engine would tell only the text
                errors.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(schema, kept())
        try:
            self.run(f"CREATE TABLE {table} AS SELECT * FROM arrow_batches", arrow_batches=reader)
        except Exception:
            if not errors:
                raise
        if errors:
            raise errors[0]

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
            raise self._exhausted(error) from error
        return rows

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query."""
        try:
            yield from self._connection.sql(query).to_arrow_reader(FETCHED)
        except (self._errors, pa.ArrowException) as error:  # Arrow wraps errors of the engine
            raise self._exhausted(error) from error

    def _exhausted(self, error: Exception) -> DataError:
        """Return an error about memory or the disk; any other of the engine's as it is, briefly."""
        text = " ".join(str(error).split("\n")[0].split()).rstrip(".")
        if not isinstance(error, (*self._exhaustion, pa.ArrowException)):
            return DataError(f"The engine cannot use the data: {text}.")
        return DataError(
            f"The engine could not go on with {self._memory >> 20} MiB of memory and the disk of "
            f"{self._folder.parent} ({text}); give it more memory by --memory, fewer --threads, or "
            "a disk with more room."
        )


@dataclass
class Staged:
    """What is in the table `interactions`.

    Args:
        columns: its columns, by role, of the types of the prepared format.
        rows: rows of the sources.
        small: rows that are left out for their value.
        in_order: whether the rows are in order of time.
    """

    columns: dict[str, pa.DataType]
    rows: int = 0
    small: int = 0
    in_order: bool = True


def stage(
    database: Database,
    interactions: Interactions,
    minimum_value: float | None,
    report: Callable[[str], None],
) -> Staged:
    """Fill the table `interactions`, without values below the minimum.

    Args:
        report: takes lines of progress.
    Raises: DataError: a source cannot be used, or there is no interaction.
    """
    if minimum_value is not None and "value" not in interactions.types:
        raise DataError(
            f"minimum_value (--minimum-value) is {minimum_value}, and {interactions.name} has no "
            "values; name their column by --column value=NAME."
        )

    def fill(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Staged:
        staged = Staged(interactions.types)
        database.run("DROP TABLE IF EXISTS interactions")
        kept = _kept(batches, staged, minimum_value, interactions, report)
        database.create("interactions", schema, kept)
        staged.rows = interactions.rows
        return staged

    staged = interactions.read(fill)
    if staged.rows == staged.small + interactions.bad_rows.count:
        raise DataError(
            f"No interaction has a value of at least {minimum_value}; give a smaller "
            "minimum_value (--minimum-value)."
        )
    return staged


def _kept(
    batches: Iterator[pa.RecordBatch],
    staged: Staged,
    minimum_value: float | None,
    interactions: Interactions,
    report: Callable[[str], None],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of at least the minimum value; note what was left out, and the order."""
    started, shown = monotonic(), monotonic()
    last: float | None = None
    for batch in batches:
        rows = batch
        if minimum_value is not None:
            least = pa.scalar(minimum_value, pa.float32())
            rows = batch.filter(pc.greater_equal(batch["value"], least))
            staged.small += batch.num_rows - rows.num_rows
        if "time" in staged.columns and rows.num_rows and staged.in_order:
            times = rows["time"].to_numpy()
            after = last is None or last <= times[0]
            staged.in_order = bool(after and np.all(times[1:] >= times[:-1]))
            last = times[-1]
        if monotonic() - shown > EVERY:
            shown = monotonic()
            speed = interactions.rows / (shown - started)
            report(f"read {interactions.rows:,} rows, {speed:,.0f} rows/s")
        yield rows


def sort_by_time(database: Database) -> None:
    """Order the interactions by time; those of one time keep their order."""
    _replace(database, "SELECT * FROM interactions ORDER BY time, rowid")


def drop_repeats(database: Database) -> int:
    """Keep the first interaction of each pair, and return how many rows were left out."""
    database.run(
        "CREATE TABLE first_rows AS SELECT min(rowid) AS first FROM interactions "
        "GROUP BY query, candidate"
    )
    dropped = database.size("interactions") - database.size("first_rows")
    if dropped:
        _replace(
            database,
            "SELECT i.* FROM interactions i JOIN first_rows f ON i.rowid = f.first "
            "ORDER BY i.rowid",
        )
    database.run("DROP TABLE first_rows")
    return dropped


def drop_pairs(database: Database, table: str) -> int:
    """Leave out the interactions whose pair (query, candidate) is in a table, and return how many
    rows that are."""
    return _replace(
        database,
        f"SELECT i.* FROM interactions i ANTI JOIN {table} o "
        "ON i.query = o.query AND i.candidate = o.candidate ORDER BY i.rowid",
    )


def keep_core(database: Database, k: int) -> int:
    """Keep the largest part of the interactions in which each query and each candidate has k, and
    return how many rows were left out.

    Rows of an entity with fewer are left out, until no entity has fewer. Which part is left does
    not depend on the order.

    Args:
        k: counts the interactions of earlier parts, too: `known_query (id, count)` and
            `known_candidate` hold those.
    Raises: DataError: no interaction is left.
    """
    for side in SIDES:
        database.run(f"CREATE TABLE few_{side} AS SELECT {side} AS id FROM interactions LIMIT 0")
    left = "interactions i ANTI JOIN few_query q ON i.query = q.id "
    left += "ANTI JOIN few_candidate c ON i.candidate = c.id"
    changed = True
    while changed:
        changed = False
        for side in SIDES:
            before = database.size(f"few_{side}")
            database.run(
                f"INSERT INTO few_{side} SELECT n.id FROM "
                f"(SELECT i.{side} AS id, count(*) AS count FROM {left} GROUP BY i.{side}) n "
                f"LEFT JOIN known_{side} k ON n.id = k.id "
                f"WHERE n.count + coalesce(k.count, 0) < {k}"
            )
            changed |= database.size(f"few_{side}") > before
    dropped = _replace(database, f"SELECT i.* FROM {left} ORDER BY i.rowid")
    for side in SIDES:
        database.run(f"DROP TABLE few_{side}")
    if not database.size("interactions"):
        raise DataError(
            f"No interaction is left with k_core (--k-core) {k}; give a smaller number."
        )
    return dropped


def _replace(database: Database, query: str) -> int:
    """Make `interactions` what a query selects, and return how many rows fewer there are."""
    before = database.size("interactions")
    database.run(f"CREATE TABLE replaced AS {query}")
    database.run("DROP TABLE interactions")
    database.run("ALTER TABLE replaced RENAME TO interactions")
    return before - database.size("interactions")


@dataclass(frozen=True)
class Vocabularies:
    """The tables of ids in the database, `ids_query` and `ids_candidate`, each (id, row): the ids
    of earlier parts, and then new ones (`new_…`) by first appearance.

    With shared ids both are `ids_entities`.

    Args:
        known: by table, the number of ids of earlier parts.
    """

    shared: bool
    known: Mapping[str, int]

    def table(self, side: SideName) -> str:
        return "entities" if self.shared else side

    @property
    def tables(self) -> Sequence[str]:
        return ("entities",) if self.shared else SIDES

    def number_ids(self, database: Database) -> None:
        """Fill the tables of ids from `known_…` (id, row) and `interactions`."""
        for table in self.tables:
            first = f"SELECT {table} AS id, min(rowid) AS first FROM interactions GROUP BY {table}"
            if self.shared:
                # As `Corpus` has it: all queries' ids, then the candidates' that are no queries'.
                first = (
                    "SELECT id, min(first) AS first FROM ("
                    "SELECT query AS id, min(rowid) AS first FROM interactions GROUP BY query "
                    "UNION ALL "
                    "SELECT candidate, min(rowid) + (SELECT count(*) FROM interactions) "
                    "FROM interactions GROUP BY candidate) GROUP BY id"
                )
            database.run(
                f"CREATE TABLE new_{table} AS SELECT n.id FROM ({first}) n "
                f"ANTI JOIN known_{table} k ON n.id = k.id ORDER BY n.first"
            )
            database.run(
                f"CREATE TABLE ids_{table} AS SELECT id, row FROM known_{table} UNION ALL "
                f"SELECT id, rowid + {self.known[table]} FROM new_{table}"
            )

    def size(self, database: Database, side: SideName) -> int:
        """Return the ids of a side, of all parts."""
        return self.known[self.table(side)] + database.size(f"new_{self.table(side)}")

    def counts(self, database: Database, side: SideName) -> NDArray[np.int64]:
        """Return the interactions of each entity in the new part, int64 [N]."""
        counts = np.zeros(self.size(database, side), np.int64)
        query = (
            f"SELECT v.row, n.count FROM (SELECT {side} AS id, count(*) AS count FROM interactions "
            f"GROUP BY {side}) n JOIN ids_{self.table(side)} v ON n.id = v.id"
        )
        for batch in database.batches(query):
            counts[batch["row"].to_numpy()] = batch["count"].to_numpy()
        return counts
