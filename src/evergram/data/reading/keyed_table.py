"""Read rows under an id, of one or several files or tables: features, weights, vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.reading.column_names import refuse_unknown
from evergram.data.reading.files import Paths, Table, TableStream, source_files
from evergram.data.reading.interactions import (
    FLOAT_CELL,
    BadRows,
    BadRowsChoice,
    Place,
    SideName,
    all_match,
    decoded,
    ids_of_cells,
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

    In files of text the type of a column follows from the cells of all of them: ids and integers
    are what is written so, numbers are if one of them has a decimal point, a column with the
    separator in any cell holds lists of texts, and all else is texts. The types of other files are
    widened as Arrow does.

    Args:
        tables: at least one.
        separator: of keys in a file of text; "" for no lists.
        columns: those that are read besides the id; None reads all.
        bad_rows: what is done with rows without an id.
        ids: names of the column of ids, the first that there is; it is called `id` in the result,
            and is int64 or string.
    Raises: DataError: a table is damaged, lacks a column that another has, or has it in a type that
        goes with none of the others'; or a row has no id.
    """
    own = next((n for n in ids if n in tables[0].names), ids[0])
    names = [n for n in (tables[0].names if columns is None else columns) if n not in (own, ID)]
    for table in tables:
        refuse_unknown(table.name, [own, *names], table.names)
        more = [n for n in table.names if columns is None and n not in tables[0].names]
        if more:
            both = f"{table.name} has a column {more[0]!r} and {tables[0].name} has none"
            raise DataError(f"{both}; give all of them the same columns.")
        refuse_non_ids(table.types[own], own, table.name)
    schemas = [pa.schema([(n, t.types[n]) for n in (own, *names)]) for t in tables]
    whole = [
        pa.Table.from_batches(list(table.batches(schema.names)), schema)
        for table, schema in zip(tables, schemas, strict=True)
    ]
    of_texts = {
        name: _type_of_texts(
            [part[name] for table, part in zip(tables, whole, strict=True) if name in table.texts],
            "" if name == own else separator,
        )
        for name in (own, *names)
    }
    bad_rows, parts = bad_rows or BadRows(), []
    bad_rows.reset()
    for table, rows in zip(tables, whole, strict=True):
        cells = decoded(rows[own])
        read, faults = ids_of_cells(cells, text_file=own in table.texts)
        good = bad_rows.good_rows(Place(table.name), {own: (cells, faults)}, len(cells))
        if own in table.texts and of_texts[own] != pa.int64():
            read = read.cast(pa.string())
        typed = {ID: read}
        for name in names:
            typed[name] = cells = decoded(rows[name])
            if name in table.texts:
                keys = pc.split_pattern(cells, separator) if of_texts[name] == BAG else cells
                typed[name] = keys.cast(of_texts[name])
        parts.append(pa.table(typed).filter(good))
    bad_rows.finish()
    bad_rows.warn()
    if any(is_text(part[ID].type) for part in parts):
        parts = [part.set_column(0, ID, part[ID].cast(pa.string())) for part in parts]
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"{', '.join(table.name for table in tables)} have a column in types that do not go "
            f"together: {' '.join(str(error).split()).rstrip('.')}; write it in one type."
        ) from error


def _type_of_texts(columns: Sequence[pa.ChunkedArray], separator: str) -> pa.DataType:
    """Return the type that holds a column of files of text."""
    cells = pa.chunked_array([c for column in columns for c in column.chunks], pa.string())
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


def read_features(
    query_features: Paths | None,
    candidate_features: Paths | None,
    columns: Mapping[str, str],
    bad_rows: BadRowsChoice,
) -> dict[SideName, pa.Table]:
    """Return the table of features of each side that has files of them."""
    given: dict[SideName, Paths | None] = {"query": query_features, "candidate": candidate_features}
    return {
        side: read_keyed_files(files, bad_rows=BadRows(bad_rows), ids=names_of_ids(columns, side))
        for side, files in given.items()
        if files is not None
    }


def names_of_ids(columns: Mapping[str, str], side: str) -> list[str]:
    """Return what the column of ids may be called in a table of features, the likeliest first."""
    named = columns.get(f"{side}_id")
    return ["id", columns.get(side, side)] if named is None else [named]


def rows_by_id(ids: pa.ChunkedArray, keys: pa.Array, source: str) -> pa.Array:
    """Return the row of each key in a table of features, int32; null where the table has none.

    Args:
        ids: of the table, int64 or string, each once.
        keys: ids of the interactions, int64 or string.
    """
    none = f"{source} have none of the ids of the interactions"
    if pa.types.is_string(ids.type) and pa.types.is_integer(keys.type) and len(ids):
        raise DataError(
            f"{none}: theirs are text, such as {ids[0].as_py()!r}, and those are integers, such as "
            f"{keys[0]}; are they of the other side? If not, write both in one type."
        )
    refuse_other_form(ids, keys, source, "the interactions")
    rows = pc.index_in(keys, value_set=ids.cast(keys.type))
    if len(ids) and rows.null_count == len(rows):
        example = f"(an id there is {ids[0]}, here {keys[0]})"
        raise DataError(f"{none} {example}; are they of the other side?")
    return rows
