"""The columns of a LanceDB table of somebody's own: their types, and the rows of each version."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import StoreError
from evergram.stores.adopted_address import AdoptedNames
from evergram.stores.lance.lance_filter import is_comparable, quoted


def check_columns(
    types: Mapping[str, pa.DataType], id_column: str, names: AdoptedNames, address: str
) -> None:
    """Refuse a table without a column that is named, or with one of a type that it may not have.

    Args:
        types: of all the table's columns.
        names: of the columns of vectors, and of those that filters compare.
        address: of the table, for errors.
    Raises: StoreError.
    """
    for column in (id_column, *names.vectors.values(), *names.filters):
        quoted(column)
        if column not in types:
            raise StoreError(
                f"{address} names the column {column!r}, which the table does not have; it has "
                f"{', '.join(sorted(types))}."
            )
    if not _is_id(types[id_column]):
        raise StoreError(
            f"The column {id_column!r} of {address} is of type {types[id_column]}; for ids it must "
            "be of whole numbers of at most 64 bits with a sign, or string."
        )
    for column in names.vectors.values():
        if not _is_vector(types[column]):
            raise StoreError(
                f"The column {column!r} of {address} is of type {types[column]}; for vectors it "
                "must be a fixed_size_list of float, double or halffloat."
            )
    for column in names.filters:
        if not is_comparable(types[column]):
            raise StoreError(
                f"The column {column!r} of {address} is of type {types[column]}, which no filter "
                "compares; filter= names columns of whole numbers, float, double, bool, string, "
                "date32 or timestamp. (SQL in Python names any column without it.)"
            )


def check_unique(ids: pa.Array, address: str) -> None:
    """Raises: StoreError: an id is twice in the table at `address`."""
    if len(pc.unique(ids)) == len(ids):
        return
    counts = pc.value_counts(ids)
    twice = counts.field(0).filter(pc.greater(counts.field(1), 1))[0].as_py()
    raise StoreError(
        f"{address} has the id {twice!r} twice; the column of ids must have each once: name "
        "another by id=COLUMN."
    )


def own_condition(version: int, id_column: str, vectors: Mapping[int, str]) -> str:
    """Return the condition of the rows of a version: the newest whose column is not NULL in them.

    Args:
        vectors: the column of each version.
    """
    parts = [f"{quoted(id_column)} is not null"]
    parts += [
        f"{quoted(column)} is {'not null' if one == version else 'null'}"
        for one, column in vectors.items()
        if one >= version
    ]
    return " and ".join(parts)


def _is_id(kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):
        return bool(kind != pa.uint64())
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_vector(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type))
