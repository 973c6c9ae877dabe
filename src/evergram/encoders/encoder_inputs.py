"""Convert ids, features and tables of objects to the inputs of an encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.data.corpus import Vocabulary, offsets_of, to_tensor
from evergram.data.feature_types import is_measure, to_measures, type_name
from evergram.encoders.encoder import EntityInputs, Schema
from evergram.errors import DataError, clause_of
from evergram.ids import is_text

ID = "id"


def checked_inputs(columns: Mapping[str, pa.Array], side: str, schema: Schema) -> EntityInputs:
    """Convert B objects to the inputs of an encoder with this schema.

    Args:
        columns: from `columns_of`: ids as "id", and features, each a key or a list of keys. A
            missing id or feature is None; a column may be left out.
        side: "query" or "candidate".
    Raises: DataError: the side or a feature is unknown, a key is neither integer nor text, or the
        encoder knows nothing about an object.
    """
    names = list(names_of(side, schema))
    unknown = [name for name in columns if name not in names]
    if unknown:
        raise DataError(
            f"The encoder has no feature {unknown[0]!r} of side {side!r}; it has "
            f"{', '.join(names)}. Leave the column out."
        )
    if not columns:
        raise DataError("No ids and no features were given; give one of them for each object.")
    if ID in columns:
        refuse_other_ids(columns[ID], side, schema)
    size = len(next(iter(columns.values())))
    ids = torch.full((size,), -1, dtype=torch.int64)
    if ID in columns:
        ids = schema.ids(side).rows(_keys(columns[ID], ID))
    bags = {
        name: _bag(columns.get(name), size, schema.vocabularies[vocabulary], name)
        for name, vocabulary in names_of(side, schema).items()
        if name != ID
    }
    inputs = EntityInputs(ids, bags)
    refuse_unknown(inputs.is_known, columns)
    return inputs


def refuse_other_ids(ids: pa.Array, side: str, schema: Schema) -> None:
    """Raises: DataError: ids do not have the type of the encoder's ids, integers or text."""
    keys, trained = _keys(ids, ID), schema.ids(side).keys.type
    if keys.null_count < len(keys) and keys.type != trained:
        raise DataError(
            f"The ids of side {side!r} are {keys.type}, such as {keys.drop_null()[0].as_py()!r}, "
            f"but the encoder was trained with {trained}. Give ids of that type."
        )


def refuse_unknown(known: Tensor, columns: Mapping[str, pa.Array]) -> None:
    """Raises: DataError: the encoder knows nothing about an object; the error names the first.

    Args:
        known: bool [B].
        columns: keys of the B objects, by name.
    """
    unknown = torch.nonzero(~known).flatten()
    if len(unknown):
        first = int(unknown[0])
        keys = ", ".join(f"{name} {column[first]}" for name, column in columns.items())
        raise DataError(
            f"The encoder has no vector for {len(unknown)} of {len(known)} objects: it was trained "
            f"with none of their keys. The first is number {first} ({keys}). Leave these objects "
            "out, or give features that it knows."
        )


def names_of(side: str, schema: Schema) -> Mapping[str, str]:
    """Return input name to vocabulary name for a side, including "id".

    Raises: DataError: the side is unknown.
    """
    if side not in schema.inputs:
        raise DataError(f"The side {side!r} is unknown; give {' or '.join(schema.inputs)}.")
    return schema.inputs[side]


def columns_of(objects: Any) -> dict[str, pa.Array]:
    """Convert ids or features of objects to Arrow columns of the same length; a list of ids becomes
    the column "id"."""
    table = _table(objects)
    if table is not None:
        return {name: _plain(table[name]) for name in table.column_names}
    if isinstance(objects, Mapping | str | bytes) or not isinstance(objects, Iterable):
        what = "Nothing" if objects is None else f"A single {type(objects).__name__}"
        raise DataError(f"{what} was given; give a list of ids, a list of mappings, or a table.")
    if isinstance(objects, Sequence) and objects and isinstance(objects[0], Mapping):
        names = dict.fromkeys(name for entry in objects for name in entry)
        return {str(name): _array([entry.get(name) for entry in objects], name) for name in names}
    return {ID: _array(objects, ID)}


def _table(objects: Any) -> pa.Table | None:
    """Convert a pandas, Polars or Arrow table to an Arrow table; None if it is not a table."""
    if isinstance(objects, pa.Table):
        return objects
    if isinstance(objects, pa.RecordBatch):
        return pa.Table.from_batches([objects])
    if not hasattr(objects, "columns"):
        return None
    if type(objects).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(objects, preserve_index=False)
    if hasattr(objects, "__arrow_c_stream__"):
        return pa.table(objects)
    raise DataError(
        f"A {type(objects).__name__} cannot be read; give a pandas, Polars or Arrow table."
    )


def _array(values: Any, name: str) -> pa.Array:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _plain(values)
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, Sequence) and any(isinstance(v, tuple | set) for v in values):
        values = [list(v) if isinstance(v, tuple | set) else v for v in values]
    if isinstance(values, Sequence) and any(isinstance(v, list) for v in values):
        values = [v if isinstance(v, list) or v is None else [v] for v in values]
    try:
        if isinstance(values, np.ndarray):
            return pa.array(values)
        return pa.array(values if isinstance(values, Sequence) else list(values))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise DataError(
            f"{name!r} cannot be read: {clause_of(error)}. The keys of a column must be all "
            "integers or all texts."
        ) from error


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _keys(keys: pa.Array, name: str) -> pa.Array:
    """Convert keys to int64 or string.

    Raises: DataError: they have another type, or an integer is 2⁶³ or more.
    """
    if pa.types.is_integer(keys.type):
        largest = pc.max(keys).as_py() if pa.types.is_uint64(keys.type) else None
        if largest is not None and largest >= 2**63:
            raise DataError(f"{name!r} has {largest}; integer keys must be below 2⁶³.")
        return keys.cast(pa.int64())
    if is_text(keys.type) or pa.types.is_null(keys.type) or pa.types.is_boolean(keys.type):
        return keys.cast(pa.string())
    raise DataError(f"{name!r} has the type {keys.type}; keys must be integers or texts.")


def _bag(
    column: pa.Array | None, size: int, vocabulary: Vocabulary, name: str
) -> tuple[Tensor, Tensor]:
    """Return the ragged rows of a vocabulary, indices [nnz] and offsets [B + 1], without unknown
    keys."""
    if column is None:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(size + 1, dtype=torch.int64)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        owner, keys = pc.list_parent_indices(column), pc.list_flatten(column)
    else:
        owner, keys = pa.array(np.arange(size)), column
    owner = torch.from_numpy(owner.to_numpy(zero_copy_only=False).astype(np.int64))
    trained = vocabulary.keys.type
    if is_measure(trained):
        values = to_measures(keys, trained, name)
        counts = torch.bincount(owner, minlength=size)
        if int(counts.max()) > 1:
            raise DataError(
                f"Object {int(counts.argmax())} has {int(counts.max())} values of {name!r}, which "
                f"is a {type_name(trained)}; give one."
            )
        # A missing value becomes an empty bag, which has its own row.
        owner, values = owner[to_tensor(pc.is_valid(values))], pc.drop_null(values)
    else:
        values = _keys(keys, name)
    # Text such as "5" matches an integer key (as in JSON and CSV), but not the other way round.
    if pa.types.is_integer(values.type) and not pa.types.is_integer(trained):
        raise DataError(
            f"The keys of feature {name!r} are {values.type}, but the encoder was trained with "
            f"{trained}. Give keys of that type."
        )
    rows = vocabulary.rows(values)
    is_known = rows >= 0
    counts = torch.bincount(owner[is_known], minlength=size)
    return rows[is_known], offsets_of(counts)
