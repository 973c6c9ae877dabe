"""Bring all interactions into one table of the database, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.prepared.engine.database import Database
from evergram.data.reading.interaction_source import Interactions
from evergram.errors import DataError

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
    """Fill the table `interactions`.

    Args:
        minimum_value: leave out smaller values.
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
