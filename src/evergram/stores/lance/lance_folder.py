"""What LanceDB's stores and tables share: errors, a write lock, and rows and conditions on ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from filelock import Timeout

from evergram.atomic_files import file_lock
from evergram.errors import DataError, StoreError, reason_and_remedy
from evergram.stores.rows import Checks, Floats, Rows
from evergram.stores.store import not_ours

# As many ids stand in one condition.
LOOKED_UP = 10_000
WAIT = 60.0  # seconds, for another process that writes


def check_local(place: str, kind: str) -> None:
    """Refuse an address that is no folder of this machine.

    Args:
        kind: of the store, such as "lance-table".
    Raises: DataError; the place is not repeated, as there may be a key in it.
    """
    scheme, colon, _ = place.partition("://")
    if colon:
        raise DataError(
            f"A store {kind}: is in a folder on a disk of this machine, and its address has "
            f"{scheme[:20]}:// in place of one; buckets and LanceDB's cloud are not read. Copy the "
            f"tables to a disk and give {kind}:DIR#…, or use PostgreSQL or Qdrant."
        )


@contextmanager
def write_lock(folder: Path, name: str, shown: str) -> Iterator[None]:
    """Hold the lock of the one process that writes; that of a killed process is free again.

    Raises: StoreError: another process holds it for too long, or the disk cannot be written.
    """
    try:
        with file_lock(folder / f"{name}.lock", timeout=WAIT):
            yield
    except Timeout:
        raise StoreError(
            f"Another process has been writing {shown} for {WAIT:.0f} s; try again later."
        ) from None
    except OSError as error:
        raise StoreError(f"{shown} cannot be written: {reason_and_remedy(error)}.") from error


def refuse_others(folder: Path, name: str, shown: str) -> None:
    """Refuse a new store whose tables are there already: they are somebody's own.

    Raises: StoreError.
    """
    for path in sorted(folder.glob(f"{name}-v*.lance")):
        raise not_ours(f"table {path.stem}", shown)


def drop_left(database: Any, table: str, schema: pa.Schema, shown: str) -> None:
    """Drop a table that the record does not name: a writer that was killed left it, empty.

    Raises: StoreError: it is somebody's own.
    """
    if not (Path(database.uri) / f"{table}.lance").exists():
        return
    left = database.open_table(table)
    if left.schema.names != schema.names or left.count_rows():
        raise not_ours(f"table {table}", shown)
    database.drop_table(table)


def lancedb_module() -> Any:
    """Return LanceDB's package. Raises: DataError: it is not installed."""
    try:
        import lancedb
    except ImportError:
        raise DataError(
            "A store in LanceDB needs lancedb: pip install 'evergram[lance]'."
        ) from None
    return lancedb


def conditions(ids: pa.Array, column: str = "id") -> Iterator[str]:
    """Yield conditions `id in (…)` in SQL, each for as many ids as one should have.

    Args:
        column: of the ids, as SQL writes it.
    """
    for start in range(0, len(ids), LOOKED_UP):
        yield f"{column} in ({', '.join(map(literal, ids.slice(start, LOOKED_UP).to_pylist()))})"


def literal(key: int | str) -> str:
    """Return an id as SQL writes it."""
    if isinstance(key, str):
        return "'" + key.replace("'", "''") + "'"
    # The smallest int64 is read as minus a number that is too large.
    return f"cast('{key}' as bigint)" if key == -(2**63) else str(key)


def vectors_of(table: pa.Table, name: str = "vector") -> Floats:
    """Return the vectors of a column without a NULL, [n, D]; a NULL in a vector is NaN."""
    column = table[name].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        vectors: Floats = flat.astype(np.float32, copy=False)
    return vectors.reshape(len(column), column.type.list_size)


def block_of(version: int, table: pa.Table) -> tuple[Rows, Checks]:
    """Return the rows of a table, and their checksums."""
    return Rows(version, table["id"].combine_chunks(), vectors_of(table)), table["check"].to_numpy()


def best_of(keys: pa.Array, vectors: Floats, query: Floats, k: int) -> tuple[pa.Array, Floats]:
    """Return the ids [≤k] of the rows with the largest inner products, and the products."""
    return ranked(keys, vectors @ query, k)


def ranked(keys: pa.Array, scores: Floats, k: int) -> tuple[pa.Array, Floats]:
    """Return the ids with the k largest scores, best first, and the scores."""
    order = np.argsort(-scores, kind="stable")[:k]
    return keys.take(pa.array(order)), scores[order]
