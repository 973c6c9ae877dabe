"""Write the files of a part: columns of interactions, and the entities of each side."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from evergram.data.feature_types import is_measure, type_name, typed
from evergram.data.prepared.column_file import release
from evergram.data.prepared.engine import Database, Vocabularies
from evergram.data.prepared.record import SIDES
from evergram.data.reading.keyed_table import refuse_repeated_ids, rows_by_id
from evergram.errors import DataError

# Bytes that are written before their pages are given back to the kernel.
WINDOW = 64 << 20
# Rows that are checked and hashed at once.
BLOCK = 1 << 20
# Columns of the files of entities that are no features.
COUNTS = ("count", "query_count", "candidate_count")


@dataclass(frozen=True)
class PartFacts:
    """A part as it is on disk; `sha256` is of the file of each column, by role."""

    rows: int
    first_time: int | float | None
    last_time: int | float | None
    sha256: dict[str, str]


def row_type(entities: int) -> str:
    """Return the type of the rows of a side of so many entities."""
    return "int32" if entities <= 1 << 31 else "int64"


def write_part(
    folder: Path, database: Database, vocabularies: Vocabularies, columns: dict[str, str]
) -> PartFacts:
    """Write the interactions of the database into a folder, which exists, as .npy files.

    Args:
        vocabularies: whose ids are numbered.
        columns: by role the name of the type on disk.
    """
    rows = database.size("interactions")
    opened = {role: _new(folder / f"{role}.npy", kind, rows) for role, kind in columns.items()}
    others = "".join(f", i.{role}" for role in columns if role not in SIDES)
    query, candidate = (f"ids_{vocabularies.table(side)}" for side in SIDES)
    batches = database.batches(
        f"SELECT i.rowid AS place, q.row AS query, c.row AS candidate{others} "
        f"FROM interactions i JOIN {query} q ON i.query = q.id "
        f"JOIN {candidate} c ON i.candidate = c.id"
    )
    written = 0
    for batch in batches:
        place = batch["place"].to_numpy()
        for role, column in opened.items():
            column[place] = batch[role].to_numpy(zero_copy_only=False)
        written += batch.nbytes
        if written > WINDOW:
            written = 0
            release(opened.values())
    for column in opened.values():
        column.flush()
    return _read_through(folder, columns, rows)


def _read_through(folder: Path, columns: dict[str, str], rows: int) -> PartFacts:
    """Hash the columns, and check that times never fall."""
    digests: dict[str, str] = {}
    times: list[Any] = []
    for role in columns:
        column = np.load(folder / f"{role}.npy", mmap_mode="r")
        with (folder / f"{role}.npy").open("rb") as file:
            digest = hashlib.sha256(file.read(column.offset))
        for start in range(0, rows, BLOCK):
            # One value of the block before, to compare across its border.
            block = np.ascontiguousarray(column[max(0, start - 1) : start + BLOCK])
            if role == "time" and not bool(np.all(block[1:] >= block[:-1])):
                raise AssertionError("the engine's order of the interactions is not by time")
            digest.update(block[min(start, 1) :].data)
            release([column])
        digests[role] = digest.hexdigest()
        if role == "time":
            times = [column[0].item(), column[-1].item()]
    first, last = times or (None, None)
    return PartFacts(rows, first, last, digests)


def _new(path: Path, kind: str, rows: int) -> Any:
    """Return a new mapped column; its blocks exist, as a full disk must not end a write to them."""
    column = np.lib.format.open_memmap(path, "w+", np.dtype(kind).newbyteorder("<"), (rows,))
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return column


def stored_features(table: pa.Table, source: str) -> pa.Table:
    """Return a table of features in the types of the files of entities, which are those that
    `Corpus.from_tables` gives them: numbers, times, keys, and lists of keys.

    Raises: DataError: an id comes twice, or a column is no feature.
    """
    refuse_repeated_ids(table["id"], source)
    columns = {"id": table["id"]}
    for name in table.column_names:
        if name in COUNTS:
            raise DataError(
                f"{source} have a column {name!r}, a name that counts of interactions have; "
                "rename it."
            )
        if name != "id":
            columns[name] = _stored(typed(table[name], name, source), f"{source} column {name!r}")
    return pa.table(columns)


def _stored(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    kind = column.type
    if is_measure(kind):
        return column
    many = pa.types.is_nested(kind)
    flat = kind.value_type if many else kind
    key = pa.int64() if pa.types.is_integer(flat) else pa.string()
    key = pa.bool_() if pa.types.is_boolean(flat) else key
    try:
        column = column.cast(pa.list_(key) if many else key)
    except pa.ArrowException as error:
        raise DataError(f"{where} cannot be read as {key}: {error}.") from error
    if many and any(chunk.flatten().null_count for chunk in column.chunks):
        raise DataError(f"{where} has a null inside a list; remove it.")
    return column


def write_entities(
    path: Path,
    new_ids: pa.Array,
    counts: Mapping[str, NDArray[np.int64]],
    features: Mapping[str, pa.Table],
    before: Path | None,
) -> None:
    """Write the ids of earlier parts as they were, and then the new ones, as an Arrow file.

    Args:
        counts: by column, what the new part adds to the count of each entity, int64 [N].
        features: by what errors call it, a table of features of new ids.
        before: the file of the earlier parts, whose features are all there are.
    Raises: DataError: features have none of the ids of a first part, or other types than before.
    """
    table = pa.table({"id": new_ids, **{n: np.zeros(len(new_ids), np.int64) for n in counts}})
    for source, own in features.items():
        rows = rows_by_id(own["id"], new_ids, source, must_match=before is None)
        for name in own.column_names[1:]:
            table = table.append_column(name, own[name].take(rows))
    if before is not None:
        with pa.memory_map(str(before)) as mapped:
            old = pa.ipc.open_file(mapped).read_all()
        columns = {
            field.name: _as_before(table[field.name], field)
            if field.name in table.column_names
            else pa.nulls(len(table), field.type)
            for field in old.schema
        }
        table = pa.concat_tables([old, pa.table(columns, old.schema)])
    for name, added in counts.items():
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(table[name].to_numpy() + added))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _as_before(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return values.cast(field.type)
    except pa.ArrowException:
        raise DataError(
            f"The feature {field.name!r} is a {type_name(field.type)} ({field.type}) in earlier "
            f"parts, and a {type_name(values.type)} ({values.type}) in what is appended; write it "
            "as before, or prepare everything again with --overwrite."
        ) from None


def new_ids_of(database: Database, table: str, kind: pa.DataType) -> pa.Array:
    """Return the new ids of a table of `Vocabularies`, in the order of their rows."""
    batches = database.batches(f"SELECT id FROM new_{table} ORDER BY rowid")
    pieces: Sequence[pa.Array] = [batch["id"].cast(kind) for batch in batches]
    return pa.concat_arrays([pa.array([], kind), *pieces])
