"""The parts that a prepared folder has already, for a run that appends to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from evergram.data.prepared.engine.database import Database
from evergram.data.prepared.engine.filters import drop_pairs
from evergram.data.prepared.engine.staging import Staged
from evergram.data.prepared.engine.vocabularies import SIDES, Vocabularies
from evergram.data.prepared.prepared_record import PreparedRecord
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.errors import DataError

_ROWS = 1 << 17


def kept_settings(record: PreparedRecord, settings: PrepareSettings, out: Path) -> PrepareSettings:
    """Return the settings of an append: what is left out of a corpus holds for all of its parts.

    Raises: DataError: the settings say otherwise than those of the first part.
    """
    choices = record.choices
    if settings.name not in (None, record.name):
        raise DataError(
            f"{out} has the name {record.name!r}, which an append keeps, and now name (--name) is "
            f"{settings.name!r}; leave it out, or prepare everything again with --overwrite."
        )
    first: dict[str, Any] = {
        "shared_ids": record.shared_ids,
        "unique": choices.unique,
        "k_core": choices.k_core,
        "minimum_value": choices.minimum_value,
        "weights": choices.weights,
    }
    for name, value in first.items():
        asked = getattr(settings, name)
        if asked != getattr(PrepareSettings(), name) and asked != value:
            raise DataError(
                f"{out} was prepared with {name} = {value}, which holds for what is appended, and "
                f"now {name} is {asked}; leave it out, or prepare everything again with "
                "--overwrite."
            )
    columns = settings.columns or choices.columns
    return replace(settings, columns=columns, name=None, **first)


def least_types(record: PreparedRecord) -> dict[str, pa.DataType]:
    """Return the types that the new part's columns have at least, for `stage`."""
    least: dict[str, pa.DataType] = {}
    least |= {side: pa.string() for side in SIDES if record.sides[side].ids == "string"}
    if record.columns.get("time") == "float64":
        least["time"] = pa.float64()
    return least


def check_columns(record: PreparedRecord, staged: Staged, out: Path) -> None:
    """Refuse columns or types that differ from those of the earlier parts. Raises: DataError."""
    old, new = set(record.columns), set(staged.columns)
    if old != new:
        raise DataError(
            f"{out} has the columns {', '.join(record.columns)}, and what is appended has "
            f"{', '.join(staged.columns)}; give it the same."
        )
    for side in SIDES:
        if record.sides[side].ids == "int64" and pa.types.is_string(staged.columns[side]):
            raise DataError(
                f"The {side} ids of {out} are integers, and what is appended has ids that are text;"
                " write them as integers, or prepare everything again with --overwrite."
            )
    if record.columns.get("time") == "int64" and staged.columns["time"] != pa.int64():
        raise DataError(
            f"The times of {out} are integers, and what is appended has decimals; write them as "
            "integers, or prepare everything again with --overwrite."
        )


def check_times(record: PreparedRecord, database: Database, out: Path) -> None:
    """Refuse interactions of before the last part's end. Raises: DataError."""
    last = record.parts[-1].last_time
    if last is None:
        return
    first = database.rows("SELECT min(time) FROM interactions")[0][0]
    if first < last:
        early = database.number(f"SELECT count(*) FROM interactions WHERE time < {last!r}")
        raise DataError(
            f"What is appended begins at {first}, before the end of {out} at {last} ({early:,} "
            "interactions are earlier); append only later ones, or prepare all sources again with "
            "--overwrite."
        )


def load_known(
    database: Database,
    record: PreparedRecord | None,
    out: Path,
    types: Mapping[str, pa.DataType],
    vocabularies: Vocabularies,
) -> None:
    """Make the tables of earlier ids with their rows and counts (`known_…`), which a first part has
    empty; with shared ids that is `known_entities`, and a view of it for each side.

    Args:
        types: of the ids of each side.
    """
    shared = vocabularies.shared
    counts = ("query_count", "candidate_count") if shared else ("count",)
    for table in vocabularies.tables:
        schema = pa.schema(
            [
                ("id", types["query" if shared else table]),
                *((name, pa.int64()) for name in ("row", *counts)),
            ]
        )
        if record is None:
            database.create(f"known_{table}", schema, [])
            continue
        with pa.memory_map(str(out / f"{table}.arrow")) as mapped:
            reader = pa.ipc.open_file(mapped)
            database.create(f"known_{table}", schema, _numbered(reader, schema))
    if shared:
        for side in SIDES:
            database.run(
                f"CREATE VIEW known_{side} AS SELECT id, row, {side}_count AS count "
                "FROM known_entities"
            )


def drop_known_pairs(
    database: Database, record: PreparedRecord, vocabularies: Vocabularies, out: Path
) -> int:
    """Leave out pairs that an earlier part has. Returns: the rows that were left out."""
    schema = pa.schema([("query", pa.int64()), ("candidate", pa.int64())])
    query, candidate = (f"known_{vocabularies.table(side)}" for side in SIDES)
    database.create("old_rows", schema, _pairs(record, out, schema))
    database.run(
        "CREATE TABLE old_pairs AS SELECT q.id AS query, c.id AS candidate FROM old_rows o "
        f"JOIN {query} q ON o.query = q.row JOIN {candidate} c ON o.candidate = c.row "
        "SEMI JOIN interactions i ON i.query = q.id AND i.candidate = c.id"
    )
    database.run("DROP TABLE old_rows")
    dropped = drop_pairs(database, "old_pairs")
    database.run("DROP TABLE old_pairs")
    return dropped


def link_parts(record: PreparedRecord, out: Path, folder: Path) -> None:
    """Give a folder the files of the earlier parts, by hard links where the disk has them."""
    for part in record.parts:
        (folder / part.folder).mkdir(parents=True)
        for file in (out / part.folder).iterdir():
            target = folder / part.folder / file.name
            with suppress(OSError):
                os.link(file, target)
            if not target.exists():
                shutil.copy2(file, target)


def _numbered(reader: pa.RecordBatchFileReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    row = 0
    for i in range(reader.num_record_batches):
        batch = reader.get_batch(i)
        rows = pa.array(np.arange(row, row + batch.num_rows))
        columns = {n: batch[n] for n in schema.names if n != "row"} | {"row": rows}
        yield pa.record_batch([columns[n] for n in schema.names], schema=schema)
        row += batch.num_rows


def _pairs(record: PreparedRecord, out: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in record.parts:
        rows = [np.load(out / part.folder / f"{side}.npy", mmap_mode="r") for side in SIDES]
        for start in range(0, part.interactions, _ROWS):
            columns = [pa.array(one[start : start + _ROWS].astype(np.int64)) for one in rows]
            yield pa.record_batch(columns, schema=schema)
