"""`Database`: DuckDB with bounded memory, its data and its spilled blocks in one folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from evergram.errors import DataError

# Rows that are fetched at once.
FETCHED = 1 << 17


class Database:
    """A database of tables that may exceed memory.

    Rows of a table that is made in an order keep it, and `rowid` counts them from 0.

    Args:
        folder: exists; is removed with everything in it by whoever made it.
        memory: bytes that the engine may hold.
        threads: that it uses.
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
        """Run a statement.

        Args:
            tables: Arrow tables or readers that it names.
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
        """Make a table of batches, in their order; an error that they raise is raised as it is.

        Raises: DataError: the memory or the disk does not suffice.
        """
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

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return all rows of a query, which are few."""
        try:
            rows: list[tuple[Any, ...]] = self._connection.execute(query).fetchall()
        except self._errors as error:
            raise self._exhausted(error) from error
        return rows

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query. Raises: DataError: the memory or the disk does not suffice."""
        try:
            yield from self._connection.sql(query).to_arrow_reader(FETCHED)
        except self._errors as error:
            raise self._exhausted(error) from error
        except pa.ArrowException as error:  # in which Arrow wraps an error of the engine
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
