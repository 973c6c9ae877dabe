"""Rows as LanceDB's tables hold them, and conditions on their ids in its SQL."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from evergram.stores.store import Checks, Floats, Rows

# As many ids stand in one condition.
LOOKED_UP = 10_000


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
    scores = vectors @ query
    order = np.argsort(-scores, kind="stable")[:k]
    return keys.take(pa.array(order)), scores[order]
