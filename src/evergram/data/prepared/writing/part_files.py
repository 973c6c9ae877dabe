"""Write the columns of a part: .npy files, filled in any order and then read through once."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from evergram.data.prepared.column_file import release
from evergram.data.prepared.engine.database import Database
from evergram.data.prepared.engine.vocabularies import SIDES, Vocabularies

# Bytes that are written before their pages are given back to the kernel.
WINDOW = 64 << 20
# Rows that are checked and hashed at once.
BLOCK = 1 << 20


@dataclass(frozen=True)
class PartFacts:
    """A part as it is on disk.

    Args:
        sha256: by role, of the file of its column.
    """

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
    rows = database.number("SELECT count(*) FROM interactions")
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
            column[place] = _values(batch[role])
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


def _values(column: pa.Array) -> Any:
    return column.to_numpy(zero_copy_only=False)
