"""Read rows under an id, of one or several files or tables: features, weights, vectors."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.reading.column_names import refuse_unknown
from evergram.data.reading.files import Paths, Table, TableStream, source_files
from evergram.data.reading.rules import (
    FLOAT_CELL,
    BadRows,
    Place,
    all_match,
    decoded,
    ids_of_cells,
    is_date,
    is_list,
    is_number,
    refuse_non_ids,
)
from evergram.errors import DataError
from evergram.ids import INTEGER, is_text, refuse_other_form

BAG = pa.list_(pa.string())
ID = "id"


def keyed_table(
    tables: Sequence[Table],
    separator: str = "|",
    columns: Sequence[str] | None = None,
    bad_rows: BadRows | None = None,
    ids: Sequence[str] = (ID,),
) -> pa.Table:
    """Return the rows of one or several tables that have the same columns, one of which is the id.

    The type of a column follows from all tables, and in files of text from all of their cells: ids
    and integers are what is written so, numbers are if one of them has a decimal point, a column
    with the separator in any cell holds lists of texts, and all else is texts. The types of other
    files are widened as far as nothing is lost.

    Args:
        tables: at least one.
        separator: of keys in a file of text; "" for no lists.
        columns: those that are read besides the id; None reads all.
        bad_rows: what is done with rows without an id.
        ids: names of the column of ids, the first that there is; it is called `id` in the result,
            and is int64 or string.
    Raises: DataError: a table is damaged, lacks a column that another has, or has it in a type that
        goes with none of the others'; the error names both; or a row has no id.
    """
    own = next((n for n in ids if n in tables[0].names), ids[0])
    names = list(tables[0].names if columns is None else [own, *columns])
    names = [n for n in names if n in (own, *(columns or ())) or n != ID]
    for table in tables:
        refuse_unknown(table.name, names if own in table.names else [own, *names], table.names)
        more = [n for n in table.names if columns is None and n not in tables[0].names]
        if more:
            both = f"{table.name} has a column {more[0]!r} and {tables[0].name} has none"
            raise DataError(f"{both}; give all of them the same columns.")
        refuse_non_ids(table.types[own], own, table.name)
    whole = []
    for table in tables:
        schema = pa.schema([(name, table.types[name]) for name in names])
        whole.append((table, pa.Table.from_batches(list(table.batches(names)), schema)))
    kinds = {n: _type_of(n, whole, "" if n == own else separator, is_id=n == own) for n in names}
    schema = pa.schema([(ID if n == own else n, kind) for n, kind in kinds.items()])
    bad_rows, parts = bad_rows or BadRows(), []
    bad_rows.reset()
    for table, rows in whole:
        place, cells = Place(table.name, texts=table.texts), decoded(rows[own])
        read, faults = ids_of_cells(cells, text_file=own in table.texts)
        good = bad_rows.good_rows(place, {own: (cells, faults)}, len(cells))
        typed = [
            _typed(read if n == own else rows[n], n, kind, table, separator)
            for n, kind in kinds.items()
        ]
        parts.append(pa.table(typed, schema).filter(good))
    bad_rows.finish()
    bad_rows.warn()
    return pa.concat_tables(parts)


def _type_of(
    name: str, whole: Sequence[tuple[Table, pa.Table]], separator: str, *, is_id: bool
) -> pa.DataType:
    """Return the type that holds a column of all tables."""
    texts = [chunk for table, t in whole if name in table.texts for chunk in t[name].chunks]
    of_texts = _type_of_texts(pa.chunked_array(texts, pa.string()), separator)
    of_texts = pa.string() if is_id and of_texts == pa.float64() else of_texts
    kinds = [
        (of_texts if name in table.texts else _plain(table.types[name]), table)
        for table, _ in whole
    ]
    widest, first = kinds[0]
    for kind, table in kinds[1:]:
        wider = wider_type(widest, kind)
        if wider is None:
            raise DataError(
                f"{first.name} has the column {name!r} as {widest} and {table.name} as {kind}; "
                "write it in one type."
            )
        widest, first = wider, first if wider == widest else table
    return pa.int64() if is_id and pa.types.is_null(widest) else widest


def _type_of_texts(cells: pa.ChunkedArray, separator: str) -> pa.DataType:
    if separator and pc.any(pc.match_substring(cells, separator)).as_py():
        return BAG
    if cells.null_count == len(cells):
        return pa.string()
    if all_match(cells, INTEGER):
        try:
            return cells.cast(pa.int64()).type
        except pa.ArrowInvalid:  # beyond 64 bits
            return pa.string()
    decimal = pc.any(pc.match_substring(cells, ".")).as_py()
    return pa.float64() if decimal and all_match(cells, FLOAT_CELL) else pa.string()


def _typed(
    cells: pa.Array | pa.ChunkedArray, name: str, kind: pa.DataType, table: Table, separator: str
) -> pa.Array | pa.ChunkedArray:
    if kind == BAG and name in table.texts:
        cells = pc.split_pattern(cells, separator)
    try:
        return cells.cast(kind, safe=not pa.types.is_timestamp(kind))
    except pa.ArrowException as error:
        raise DataError(
            f"{table.name} column {name!r} is {cells.type} and cannot be read as {kind}, which "
            f"another file needs: {' '.join(str(error).split()).rstrip('.')}; write the column "
            "in one type."
        ) from error


def read_keyed_files(
    path: Paths,
    separator: str = "|",
    columns: Sequence[str] | None = None,
    bad_rows: BadRows | None = None,
    ids: Sequence[str] = (ID,),
) -> pa.Table:
    """Return `keyed_table` of files."""
    streams = [TableStream(file) for file in source_files(path)]
    return keyed_table(streams, separator, columns, bad_rows, ids)


def rows_by_id(
    ids: pa.ChunkedArray, keys: pa.Array, source: str, *, must_match: bool = True
) -> pa.Array:
    """Return the row of each key in a table of features, int32; null where the table has none.

    Args:
        ids: of the table, int64 or string, each once.
        keys: ids of the interactions, int64 or string.
        must_match: one of them must be in the table, unless that is empty.
    """
    none = f"{source} have none of the ids of the interactions"
    if pa.types.is_string(ids.type) and pa.types.is_integer(keys.type) and len(ids):
        raise DataError(
            f"{none}: theirs are text, such as {ids[0].as_py()!r}, and those are integers, such as "
            f"{keys[0]}; are they of the other side? If not, write both in one type."
        )
    refuse_other_form(ids, keys, source, "the interactions")
    rows = pc.index_in(keys, value_set=ids.cast(keys.type))
    if must_match and len(ids) and rows.null_count == len(rows):
        example = f"(an id there is {ids[0]}, here {keys[0]})"
        raise DataError(f"{none} {example}; are they of the other side?")
    return rows


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both without loss; None if there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if is_list(one) and is_list(other):
        inside = wider_type(one.value_type, other.value_type)
        return None if inside is None else pa.list_(inside)
    kinds = (one, other)
    if all(map(is_number, kinds)):
        return pa.float64()
    if all(is_text(kind) or pa.types.is_integer(kind) for kind in kinds):
        return pa.string()
    if all(map(is_date, kinds)):
        zones = {getattr(kind, "tz", None) is not None for kind in kinds}
        return pa.timestamp("us", "UTC" if True in zones else None) if len(zones) == 1 else None
    return None


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without its width or encoding."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if is_text(kind):
        return pa.string()
    return pa.int64() if pa.types.is_integer(kind) else kind
