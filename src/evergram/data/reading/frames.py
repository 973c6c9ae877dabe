"""Convert tables, sparse matrices and lists in memory to Arrow tables of interactions.

The module of an object's class tells its library, so that none of the libraries is imported, or has
to be installed, for the sake of another.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from evergram.data.reading.column_names import guess
from evergram.data.reading.interaction_source import InteractionSource, source_of
from evergram.data.reading.keyed_table import keyed_table, refuse_repeated_ids
from evergram.data.reading.rules import BadRows, BadRowsChoice
from evergram.data.reading.table_stream import MemoryTable
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError

# The parts of a tuple, in their order.
TUPLE = ("query", "candidate", "weight", "time")
KINDS = (
    "a DataFrame of pandas or Polars, an Arrow table, a SciPy sparse matrix, a mapping of names to "
    "columns, or a list of tuples (query, candidate) or of mappings"
)


def interactions_of(
    data: Any,
    names: Mapping[str, str],
    matrix_ids: Mapping[str, Sequence[int | str] | None],
) -> InteractionSource:
    """Return the interactions of a table, a sparse matrix or a list.

    Args:
        data: as of `Corpus.of`.
        names: by role (query, candidate, value, time, weight) the column of `data`; for other
            roles, the column of the same name if it exists.
        matrix_ids: by side the ids of a matrix's rows and columns.
    Raises: DataError: `data` is of another kind, lacks a column of `names`, or does not fit
        `matrix_ids`.
    """
    if _library(data) == "scipy":
        return source_of(MemoryTable(_from_sparse(data, matrix_ids), "The matrix"), {})
    if any(ids is not None for ids in matrix_ids.values()):
        raise DataError(
            "query_ids and candidate_ids name the rows and columns of a sparse matrix; of a "
            f"{_kind(data)}, give the columns of ids with query=… and candidate=…."
        )
    if _is_list_of_tuples(data):
        return source_of(MemoryTable(table_of(_from_tuples(data), "The list"), "The list"), {})
    source = f"The {_kind(data)}"
    table = table_of(data, source)
    missing = [role for role, name in names.items() if name not in table.column_names]
    if missing:
        if _library(data) == "pandas" and names[missing[0]] in data.index.names:
            raise DataError(
                f"{source} has {names[missing[0]]!r} in its index, which is not read; give "
                "frame.reset_index()."
            )
        raise DataError(_missing_column(source, missing, table.column_names, names))
    return source_of(MemoryTable(table, source), names)


def features_of(
    data: Any, source: str, bad_rows: BadRowsChoice, ids: Sequence[str] = ("id",)
) -> pa.Table:
    """Return a table of features, whose column of ids is `id`.

    Args:
        data, source: see `table_of`.
        bad_rows: what is done with rows without an id.
        ids: names that this column may have in `data`.
    """
    table = MemoryTable(table_of(data, source), source)
    return keyed_table([table], bad_rows=BadRows(bad_rows), ids=ids)


def table_of(data: Any, source: str) -> pa.Table:
    """Return a frame, a mapping of columns or a list of mappings as an Arrow table.

    Args:
        source: its name, for errors.
    Raises: DataError: `data` is of another kind, a column mixes types, or two have one name.
    """
    if isinstance(data, (list, tuple)) and not data:
        raise DataError(f"{source} has no rows; at least one interaction is needed.")
    if _library(data) in ("pandas", "polars") and not hasattr(type(data), "columns"):
        raise DataError(f"A {_kind(data)} is no table of interactions; give {KINDS}.")
    if _library(data) == "pandas":
        _refuse_repeats([str(name) for name in data.columns], source)
    try:
        table = _arrow_table(data)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            f"{source} cannot be read as columns: {' '.join(str(error).split()).rstrip('.')}; "
            "give each column values of one type."
        ) from error
    if table is None:
        raise DataError(f"A {_kind(data)} is no table of interactions; give {KINDS}.")
    _refuse_repeats(table.column_names, source)
    return pa.table({n: _without_views(table[n]) for n in table.column_names})


def _arrow_table(data: Any) -> pa.Table | None:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if _library(data) == "pandas":
        # A missing cell of pandas' older types is NaN; as a null it is refused as in a file.
        try:
            table = pa.Table.from_pandas(data, preserve_index=False)
            for i, (name, dtype) in enumerate(data.dtypes.items()):
                if dtype.kind == "O" and pa.types.is_temporal(table.schema.field(i).type):
                    table = table.set_column(i, str(name), _column(data[name].tolist(), str(name)))
        except pa.ArrowException:  # its error names no row; `_column` does
            table = pa.table({str(n): _column(data[n].tolist(), str(n)) for n in data.columns})
        return table.replace_schema_metadata(None)
    if _library(data) == "polars":
        frame = data.collect() if hasattr(data, "collect") else data
        return frame.to_arrow(compat_level=_without_string_views())
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if isinstance(data, Mapping):
        return pa.table({str(name): _column(values, str(name)) for name, values in data.items()})
    if isinstance(data, Sequence) and all(hasattr(row, "_asdict") for row in data):
        data = [row._asdict() for row in data]  # a named tuple says which column is which
    if isinstance(data, Sequence) and data and all(isinstance(row, Mapping) for row in data):
        names = list(dict.fromkeys(str(name) for row in data for name in row))
        return pa.table({n: _column([row.get(n) for row in data], n) for n in names})
    return None


def _without_string_views() -> Any:
    """Return the Polars setting that exports plain strings; Arrow computes little with views."""
    return sys.modules["polars"].CompatLevel.oldest()


def _refuse_repeats(names: Sequence[str], source: str) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{source} has two columns {repeated!r}; rename one of them.")


def _from_tuples(data: Sequence[Any]) -> dict[str, Any]:
    length = len(data[0])
    for row, one in enumerate(data, 1):
        if not isinstance(one, (tuple, list)) or len(one) != length:
            raise DataError(
                f"The list row {row} is {one!r}; it must be a tuple of {length} values, as row 1."
            )
    if not 2 <= length <= len(TUPLE):
        raise DataError(
            f"The list has tuples of {length}; they must be ({', '.join(TUPLE[:2])}), "
            f"({', '.join(TUPLE[:3])}) or ({', '.join(TUPLE)})."
        )
    columns = list(zip(*data, strict=True))
    return dict(zip(TUPLE, columns, strict=False))


def _from_sparse(matrix: Any, matrix_ids: Mapping[str, Sequence[int | str] | None]) -> pa.Table:
    entries = matrix.tocoo()
    stored = entries.data != 0
    columns: dict[str, Any] = {}
    places = zip(("query", "candidate"), (entries.row, entries.col), matrix.shape, strict=True)
    for side, place, size in places:
        number = pa.array(place[stored].astype(np.int64))
        ids = matrix_ids[side]
        if ids is None:
            columns[side] = number
            continue
        if len(ids) != size:
            raise DataError(
                f"{side}_ids has {len(ids)} ids and the matrix {size} "
                f"{'rows' if side == 'query' else 'columns'}; give one id each."
            )
        named = _column(ids, f"{side}_ids")
        refuse_repeated_ids(pa.chunked_array([named]), f"{side}_ids")
        columns[side] = named.take(number)
    weight = entries.data[stored]
    if not (weight == 1).all():
        columns["weight"] = pa.array(weight.astype(np.float64))
    return pa.table(columns)


def _column(values: Any, name: str) -> pa.Array:
    """Return an Arrow array. Raises: DataError: the values have several types; it names the row."""
    if _library(values) == "polars":
        return values.to_arrow(compat_level=_without_string_views())
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
        return _without_views(pa.chunked_array(values)).combine_chunks()
    if isinstance(values, np.ndarray) and values.dtype != object:
        return pa.array(values)
    values = _alike_dates(list(values))
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        first = next(v for v in values if v is not None)
        numbers = (int, float)
        for row, value in enumerate(values, 1):
            same = isinstance(value, numbers if isinstance(first, numbers) else type(first))
            if value is not None and not same:
                raise DataError(
                    f"column {name!r} mixes types: row {row} is {value!r}, and before it stands "
                    f"{first!r}; give it values of one type."
                ) from None
        raise DataError(
            f"column {name!r} cannot be read (its first value is {first!r}); give it integers of "
            "at most 64 bits, strings, or numbers."
        ) from None


def _alike_dates(values: list[Any]) -> list[Any]:
    """Return values with dates of several kinds as texts: Arrow would take a time without a zone
    for one in UTC, and of a date with a time, the date alone."""
    dates = [value for value in values if isinstance(value, date) and value == value]
    kinds = {(isinstance(d, datetime), getattr(d, "tzinfo", None) is not None) for d in dates}
    if len(kinds) < 2:
        return values
    return [value.isoformat() if isinstance(value, date) else value for value in values]


def _without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column with plain strings instead of views, large strings or dictionaries."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string())
    return column


def _missing_column(
    source: str, missing: Sequence[str], has: Sequence[str], names: Mapping[str, str]
) -> str:
    likely = {r: n for r, n in guess(has).items() if n not in names.values()}
    hint = ", ".join(f"{role}={likely.get(role, '…')!r}" for role in missing)
    return (
        f"{source} has no column {names[missing[0]]!r}; its columns are: {', '.join(has) or 'none'}"
        f"{did_you_mean(names[missing[0]], has)}. Name the right ones: Corpus.of(…, {hint})."
    )


def _is_list_of_tuples(data: Any) -> bool:
    rows = isinstance(data, (list, tuple)) and len(data) > 0
    return rows and isinstance(data[0], (tuple, list)) and not hasattr(data[0], "_asdict")


def _library(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


def _kind(data: Any) -> str:
    return type(data).__name__
