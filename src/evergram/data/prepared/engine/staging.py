"""Bring all sources into one table of the database, in their order and of one type a column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.prepared.engine.database import Database
from evergram.data.prepared.sources.interaction_source import (
    Clock,
    InteractionSource,
    same_columns,
)
from evergram.errors import DataError
from evergram.ids import is_text

# Seconds between two lines of progress.
EVERY = 5.0


@dataclass
class Staged:
    """What is in the table `interactions`.

    Args:
        columns: its columns, by role, of the types of the prepared format.
        rows: rows of the sources.
        small: rows that are left out for their value.
        in_order: True if the rows are in order of time.
        weighs: True if a row has a weight above 0.
    """

    columns: dict[str, pa.DataType]
    rows: int = 0
    small: int = 0
    in_order: bool = True
    weighs: bool = False


class _WidenedError(Exception):
    """A column holds what its type so far cannot; all is read again with the wider type."""


def stage(
    database: Database,
    sources: Sequence[InteractionSource],
    minimum_value: float | None,
    report: Callable[[str], None],
    least: Mapping[str, pa.DataType] | None = None,
    *,
    shared_ids: bool = False,
) -> Staged:
    """Fill the table `interactions` from the sources.

    Args:
        minimum_value: leave out smaller values.
        report: takes lines of progress.
        least: types of some roles, whatever the sources hold: of ids string, of times float64.
        shared_ids: the ids of both sides are of one type.
    Raises: DataError: a source cannot be used, or there is no interaction.
    """
    roles = same_columns(sources)
    if minimum_value is not None and "value" not in roles:
        raise DataError(
            f"minimum_value (--minimum-value) is {minimum_value}, and {sources[0].name} has no "
            "values; name their column by --column value=NAME."
        )
    types = _first_types(sources, roles)
    types |= {role: kind for role, kind in (least or {}).items() if role in types}
    while True:
        if shared_ids and pa.string() in (types["query"], types["candidate"]):
            types |= dict.fromkeys(("query", "candidate"), pa.string())
        loading = _Loading(sources, Staged(types), minimum_value, report)
        try:
            loading.into(database)
        except _WidenedError:
            continue  # `types` holds the wider type
        break
    staged = loading.staged
    if not staged.rows:
        raise DataError(f"{sources[0].name} has no rows; at least one interaction is needed.")
    if staged.rows == staged.small:
        raise DataError(
            f"No interaction has a value of at least {minimum_value}; give a smaller "
            "minimum_value (--minimum-value)."
        )
    if "weight" in staged.columns and not staged.weighs:
        raise DataError(
            f"{sources[0].name}: the weight of every row is 0, so nothing would be learned; give "
            "weights above 0, or leave the column out."
        )
    return staged


def _first_types(
    sources: Sequence[InteractionSource], roles: Sequence[str]
) -> dict[str, pa.DataType]:
    """Return the narrowest types that the sources' own types allow."""
    types: dict[str, pa.DataType] = {}
    for role in roles:
        kinds = [source.types[role] for source in sources if not source.is_text]
        kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds]
        if role in ("value", "weight"):
            types[role] = pa.float32()
        elif role == "time":
            floats = any(pa.types.is_floating(kind) for kind in kinds)
            types[role] = pa.float64() if floats else pa.int64()
        else:
            integers = all(pa.types.is_integer(kind) for kind in kinds)
            types[role] = pa.int64() if integers else pa.string()
    return types


class _Loading:
    """One pass over all sources."""

    def __init__(
        self,
        sources: Sequence[InteractionSource],
        staged: Staged,
        minimum_value: float | None,
        report: Callable[[str], None],
    ) -> None:
        self.staged = staged
        self._sources, self._minimum, self._report = sources, minimum_value, report
        self._last: float | int | None = None

    def into(self, database: Database) -> None:
        schema = pa.schema(list(self.staged.columns.items()))
        database.run("DROP TABLE IF EXISTS interactions")
        database.create("interactions", schema, self._batches(schema))

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        clock, started, shown = Clock(), monotonic(), monotonic()
        for source in self._sources:
            for table in source.tables(clock):
                table = pa.table(
                    [self._typed(table[field.name], field) for field in schema], schema=schema
                )
                self.staged.rows += table.num_rows
                if self._minimum is not None:
                    least = pa.scalar(self._minimum, pa.float32())
                    kept = table.filter(pc.greater_equal(table["value"], least))
                    self.staged.small += table.num_rows - kept.num_rows
                    table = kept
                if "weight" in schema.names and table.num_rows:
                    self.staged.weighs |= pc.max(table["weight"]).as_py() > 0
                if "time" in schema.names:
                    self._note_order(table["time"])
                if monotonic() - shown > EVERY:
                    shown = monotonic()
                    speed = self.staged.rows / (shown - started)
                    self._report(f"read {self.staged.rows:,} rows, {speed:,.0f} rows/s")
                yield from table.to_batches()

    def _typed(self, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        """Return the column in its type; widen the type if it is too narrow."""
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        kind = column.type
        texts = is_text(kind)
        decimals = field.name == "time" and pa.types.is_floating(kind)
        if pa.types.is_integer(field.type) and (texts or decimals):
            self.staged.columns[field.name] = pa.string() if texts else pa.float64()
            raise _WidenedError
        return column.cast(field.type, safe=False)  # large integers are rounded to float64

    def _note_order(self, times: pa.ChunkedArray) -> None:
        values = times.to_numpy()
        if not len(values) or not self.staged.in_order:
            return
        after = self._last is None or self._last <= values[0]
        self.staged.in_order = bool(after and np.all(values[1:] >= values[:-1]))
        self._last = values[-1]
