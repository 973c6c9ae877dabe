"""The files of a backfill: the order of its rows, and the old rows, to be put back."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa

from evergram.atomic_files import OWNER_ALONE, replacing
from evergram.errors import IntegrityError
from evergram.stores.rows import places_among
from evergram.stores.store import Rows

_HASH = 32


def write_table(path: Path, table: pa.Table, mode: int = OWNER_ALONE) -> None:
    """Write a table, whole or not at all, as its SHA-256 followed by an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue()
    with replacing(path, mode) as file:
        file.write(sha256(content).digest())
        file.write(content)


def read_table(path: Path) -> pa.Table:
    """Return the table that `write_table` wrote. Its hash is compared before anything is parsed, as
    damaged Arrow can end the process.

    Raises: IntegrityError: it is missing or damaged.
    """
    try:
        with pa.memory_map(str(path)) as file:
            whole = file.read_buffer()
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error}. Plan again.") from error
    content = whole[_HASH:]
    if whole[:_HASH].to_pybytes() != sha256(content).digest():
        raise IntegrityError(
            f"{path} is not what was written; no row is taken from it. Rows that were refreshed "
            "stay so; plan again."
        )
    try:
        table = pa.ipc.open_file(content).read_all()
        table.validate(full=True)
    except pa.ArrowException as error:
        raise IntegrityError(f"{path} is no table of a backfill: {error}. Plan again.") from error
    return table


def read_order(path: Path) -> pa.Table:
    """Return the ids to refresh, worst first, and the predicted error of each.

    Raises: IntegrityError: it is missing or damaged.
    """
    return _columns(read_table(path), path, "id", "error")


def write_journal(path: Path, parts: list[Rows], mode: int = OWNER_ALONE) -> None:
    """Write rows of several versions, whose vectors may differ in length."""
    tables = [
        pa.table(
            {
                "id": rows.ids,
                "version": pa.array(np.full(len(rows), rows.version), pa.int64()),
                "vector": pa.array(list(rows.vectors), pa.list_(pa.float32())),
            }
        )
        for rows in parts
    ]
    write_table(path, pa.concat_tables(tables), mode)


def journal_rows(path: Path) -> Iterator[Rows]:
    """Yield what `write_journal` wrote, by version. Raises: IntegrityError: missing or damaged."""
    table = _columns(read_table(path), path, "id", "version", "vector")
    versions = table["version"].to_numpy()
    for version in sorted(set(versions.tolist())):
        mine = table.filter(pa.array(versions == version))
        vectors = np.stack([np.asarray(v, dtype=np.float32) for v in mine["vector"].to_numpy()])
        yield Rows(int(version), mine["id"].combine_chunks(), vectors)


def _columns(table: pa.Table, path: Path, *names: str) -> pa.Table:
    if table.column_names != list(names):
        raise IntegrityError(f"{path} is no table of a backfill; plan again.")
    return table


def not_in_journals(parts: list[Rows], paths: list[Path]) -> list[Rows]:
    """Return the rows that no journal has with the same vector. Raises: IntegrityError."""
    for known in (rows for path in paths for rows in journal_rows(path)):
        parts = [_without(rows, known) for rows in parts]
    return [rows for rows in parts if len(rows)]


def _without(rows: Rows, known: Rows) -> Rows:
    if rows.version != known.version or not len(rows):
        return rows
    there, places = places_among(rows.ids, known.ids)
    new = ~there
    new[there] = (rows.vectors[there] != known.vectors[places]).any(axis=1)
    return Rows(rows.version, rows.ids.filter(pa.array(new)), rows.vectors[new])
