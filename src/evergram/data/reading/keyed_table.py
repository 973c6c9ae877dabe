"""`KeyedTable`: rows under an id, of one or several files: features, weights, vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.files.column_names import refuse_unknown
from evergram.data.reading.rules import (
    FLOAT_CELL,
    BadRows,
    Decimals,
    Place,
    decoded,
    ids_of_cells,
    refuse_non_ids,
)
from evergram.data.reading.source_files import Paths, source_files
from evergram.data.reading.table_stream import MemoryTable, TableStream
from evergram.errors import DataError
from evergram.ids import INTEGER, is_text

BAG = pa.list_(pa.string())
ID = "id"


class KeyedTable:
    """The rows of one or several tables that have the same columns, one of which is the id.

    The type of a column follows from all tables, and in files of text from all of their cells, so
    those are read twice: ids and integers are what is written so, numbers are if one of them has a
    decimal point, a column with the separator in any cell holds lists of texts, and all else is
    texts. The types of other files are widened as
    far as nothing is lost.

    Args:
        tables: at least one.
        separator: of keys in a file of text; "" for no lists.
        columns: those that are read besides the id; None reads all.
        bad_rows: what is done with rows without an id.
        ids: names of the column of ids, the first that there is; it is called `id` in the result.
    Attributes:
        schema: its columns and their types; the id of int64 or string.
    Raises: DataError: a table is damaged, lacks a column that another has, or has it in a type that
        goes with none of the others'; the error names both.
    """

    def __init__(
        self,
        tables: Sequence[TableStream | MemoryTable],
        separator: str = "|",
        columns: Sequence[str] | None = None,
        bad_rows: BadRows | None = None,
        ids: Sequence[str] = (ID,),
    ) -> None:
        self._tables, self._separator = tables, separator
        self._id = next((n for n in ids if n in tables[0].names), ids[0])
        self.bad_rows = BadRows() if bad_rows is None else bad_rows
        names = list(tables[0].names if columns is None else [self._id, *columns])
        names = [n for n in names if n in (self._id, *(columns or ())) or n != ID]
        for table in tables:
            if self._id not in table.names:
                refuse_unknown(table.name, [self._id, *names], table.names)
            for one, other in ((tables[0], table), (table, tables[0])):
                lacks = [n for n in one.names if n in names or columns is None]
                lacks = [n for n in lacks if n not in other.names]
                if lacks:
                    raise DataError(
                        f"{one.name} has a column {lacks[0]!r} and {other.name} has none; give all "
                        "of them the same columns."
                    )
            refuse_unknown(table.name, names, table.names)
        self._texts = [n for n in names if any(n in table.texts for table in tables)]
        of_texts = self._types_of_texts() if self._texts else {}
        self._names = names
        self.schema: pa.Schema = pa.schema(
            [(ID if n == self._id else n, self._type_of(n, of_texts.get(n))) for n in names]
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the types of the schema. Raises: DataError: a file is damaged, a row
        has no id, or a number would be rounded."""
        self.bad_rows.count = 0
        self.bad_rows.reasons.clear()
        decimals = Decimals()
        for table in self._tables:
            row = 0
            for batch in table.batches(self._names):
                place = Place(table.name, row, texts=table.texts)
                row += batch.num_rows
                whole = pa.Table.from_batches([batch])
                cells = whole[self._id]
                ids, faults = ids_of_cells(decoded(cells), text_file=self._id in table.texts)
                good = self.bad_rows.good_rows(place, self._id, cells, faults)
                if not decimals.settled:
                    decimals.see(ids, place, self._id)
                columns = [
                    self._typed(ids if n == self._id else whole[n], n, table) for n in self._names
                ]
                yield from pa.table(columns, self.schema).filter(good).to_batches()
        self.bad_rows.finish()
        decimals.finish()

    def table(self) -> pa.Table:
        """Return all of it, and warn of bad rows that were dropped."""
        table = pa.Table.from_batches(self.batches(), self.schema)
        self.bad_rows.warn()
        return table

    def _typed(
        self, cells: pa.ChunkedArray, name: str, table: TableStream | MemoryTable
    ) -> pa.ChunkedArray:
        kind = self.schema.field(ID if name == self._id else name).type
        cells = decoded(cells)
        if kind == BAG and name in table.texts:
            cells = pc.split_pattern(cells, self._separator)
        try:
            return cells.cast(kind, safe=not pa.types.is_timestamp(kind))
        except pa.ArrowException as error:
            raise DataError(
                f"{table.name} column {name!r} is {cells.type} and cannot be read as {kind}, which "
                f"another file needs: {' '.join(str(error).split()).rstrip('.')}; write the column "
                "in one type."
            ) from error

    def _type_of(self, name: str, of_texts: pa.DataType | None) -> pa.DataType:
        """Return the type that holds a column of all tables."""
        kinds = [
            (of_texts or pa.string() if name in table.texts else _plain(table.types[name]), table)
            for table in self._tables
        ]
        if name == self._id:
            for table in self._tables:
                refuse_non_ids(table.types[name], name, table.name)
        widest, first = kinds[0]
        for kind, table in kinds[1:]:
            wider = wider_type(widest, kind)
            if wider is None:
                raise DataError(
                    f"{first.name} has the column {name!r} as {widest} and {table.name} as {kind}; "
                    "write it in one type."
                )
            widest, first = wider, first if wider == widest else table
        return pa.int64() if name == self._id and pa.types.is_null(widest) else widest

    def _types_of_texts(self) -> dict[str, pa.DataType]:
        """Return the types of columns of texts."""
        # Those that hold only integers so far, those that hold any cell, and those that hold lists.
        plain, given, bags = set(self._texts), set(), set()
        # Those that hold only numbers so far, and those that hold one with decimals.
        numbers, decimals = set(self._texts), set()
        for table in self._tables:
            names = [name for name in self._texts if name in table.texts]
            for batch in table.batches(names) if names else ():
                for name, texts in zip(names, batch.columns, strict=True):
                    if name in plain and not _are_plain_integers(texts):
                        plain.remove(name)
                    if texts.null_count < len(texts):
                        given.add(name)
                    if name in numbers and not _all_match(texts, FLOAT_CELL):
                        numbers.remove(name)
                    elif name in numbers and name not in decimals and name not in plain:
                        found = pc.any(pc.match_substring(texts, ".")).as_py()
                        decimals |= {name} if found else set()
                    if name != self._id and self._separator and name not in bags:
                        found = pc.any(pc.match_substring(texts, self._separator)).as_py()
                        bags |= {name} if found else set()
        types = dict.fromkeys(self._texts, pa.string())
        types |= dict.fromkeys((numbers & decimals) - {self._id}, pa.float64())
        return types | dict.fromkeys(plain & given, pa.int64()) | dict.fromkeys(bags, BAG)


def open_keyed(
    path: Paths,
    separator: str = "|",
    columns: Sequence[str] | None = None,
    bad_rows: BadRows | None = None,
    ids: Sequence[str] = (ID,),
) -> KeyedTable:
    """Return the rows of files, each under its id.

    Args and errors: see `KeyedTable`.
    """
    streams = [TableStream(file) for file in source_files(path)]
    return KeyedTable(streams, separator, columns, bad_rows, ids)


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both without loss; None if there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if _is_list(one) and _is_list(other):
        inside = wider_type(one.value_type, other.value_type)
        return None if inside is None else pa.list_(inside)
    kinds = (one, other)
    if all(map(_is_number, kinds)):
        return pa.float64()
    if all(is_text(kind) or pa.types.is_integer(kind) for kind in kinds):
        return pa.string()
    if all(pa.types.is_timestamp(kind) or pa.types.is_date(kind) for kind in kinds):
        zones = {getattr(kind, "tz", None) is not None for kind in kinds}
        return pa.timestamp("us", "UTC" if True in zones else None) if len(zones) == 1 else None
    return None


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without its width or encoding."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if _is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if is_text(kind):
        return pa.string()
    return pa.int64() if pa.types.is_integer(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _is_number(kind: pa.DataType) -> bool:
    return any(
        test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    )


def _are_plain_integers(texts: pa.Array) -> bool:
    """Return whether all cells that are not empty are integers of 64 bits as printed."""
    if not _all_match(texts, INTEGER):
        return False
    try:
        texts.cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    return True


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False
