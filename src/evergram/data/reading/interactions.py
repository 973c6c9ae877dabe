"""`InteractionSources`: all sources of interactions that are read together."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.reading.column_names import guess, lacking, refuse_unknown
from evergram.data.reading.files import (
    DAMAGED,
    MemoryTable,
    Paths,
    Table,
    TableStream,
    refuse_repeated_names,
    source_files,
    unpacked,
)
from evergram.data.reading.keyed_table import read_keyed_files
from evergram.data.reading.rules import (
    ROLES,
    SIDES,
    BadRows,
    BadRowsChoice,
    Place,
    ReadAgainError,
    Rules,
    SideName,
    decoded,
    rounded,
)
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.ids import is_text

# The parts of a tuple, in their order.
TUPLE = ("query", "candidate", "weight", "time")
KINDS = (
    "a DataFrame of pandas or Polars, an Arrow table, a SciPy sparse matrix, a mapping of names to "
    "columns, or a list of tuples (query, candidate) or of mappings"
)
T = TypeVar("T")


def adjacency_list(path: Path) -> Table:
    """Return the pairs of lines `query candidate candidate …`, of the UTF-8 file `path`, perhaps
    `.gz`.

    The public splits of LightGCN and NGCF (Gowalla, Yelp2018, Amazon-Book) have this form. Ids are
    divided by white space. A line that names a query alone has no pair; a query may have several
    lines.
    """
    try:
        with unpacked(path) as file:
            # A byte-order mark, which programs of Windows begin a file with, is no part of an id.
            lines = [line.split() for line in file.read().decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8; save the file as UTF-8.") from error
    except DAMAGED as error:
        raise DataError(f"{path} cannot be read: {error}; fetch it again.") from error
    queries = [ids[0] for ids in lines for _ in ids[1:]]
    candidates = [one for ids in lines for one in ids[1:]]
    if not queries:
        raise DataError(f"{path} has no pairs; a line must be a query and its candidates.")
    columns = {"query": queries, "candidate": candidates}
    table = MemoryTable(pa.table(columns, pa.schema(dict.fromkeys(SIDES, pa.string()))), str(path))
    table.texts = frozenset(SIDES)
    return table


@dataclass(frozen=True)
class InteractionSource:
    """Interactions that can be read more than once: a table, and by role (query, candidate, perhaps
    value, time, weight) its own name of the column."""

    table: Table
    names: Mapping[str, str]

    @property
    def unread(self) -> list[str]:
        return [name for name in self.table.names if name not in self.names.values()]

    def tables(self, rules: Rules) -> Iterator[pa.Table]:
        """Yield its batches as `Rules.checked` returns them. In a text, ids are of the type that
        the batch alone suggests."""
        texts = frozenset(role for role, name in self.names.items() if name in self.table.texts)
        row = 0
        # Two roles may share a column, as value and weight.
        for batch in self.table.batches(list(dict.fromkeys(self.names.values()))):
            table = pa.table({role: batch[name] for role, name in self.names.items()})
            if batch.num_rows:
                yield rules.checked(table, Place(self.table.name, row, self.names, texts))
            row += batch.num_rows


@dataclass
class InteractionSources:
    """The interactions of all sources that are read together, in their order.

    Args:
        sources: at least one.
        shared_ids: the ids of both sides are of one type.
        bad_rows: what is done with rows that cannot be used.
    Attributes:
        rows: rows of the sources, once they were read.
        types: the type of each role.
    Raises: DataError: one source lacks a column that another has.
    """

    sources: Sequence[InteractionSource]
    shared_ids: bool = False
    bad_rows: BadRows = field(default_factory=BadRows)
    types: dict[str, pa.DataType] = field(init=False)
    rows: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        # The narrowest types; a row may widen them.
        narrow = dict.fromkeys([*SIDES, "time"], pa.int64())
        self.types = {r: narrow.get(r, pa.float32()) for r in _same_columns(self.sources)}

    @property
    def name(self) -> str:
        return self.sources[0].table.name

    def table(self) -> pa.Table:
        """Return all of them, and warn of bad rows that were dropped; see `read`."""
        table = self.read(lambda schema, batches: pa.Table.from_batches(batches, schema))
        self.bad_rows.warn()
        return table

    def read(self, take: Callable[[pa.Schema, Iterator[pa.RecordBatch]], T]) -> T:
        """Return what a function makes of their schema and batches; it is called again where a type
        proves to be too narrow."""
        while True:
            if self.shared_ids and pa.string() in (self.types["query"], self.types["candidate"]):
                self.types |= dict.fromkeys(SIDES, pa.string())
            try:
                return take(pa.schema(list(self.types.items())), self._batches())
            except ReadAgainError:
                continue  # `types` tells what is read otherwise

    def _batches(self) -> Iterator[pa.RecordBatch]:
        self.rows, kept, weighs = 0, 0, False
        self.bad_rows.reset()
        rules = Rules(self.bad_rows)
        for source in self.sources:
            for table in source.tables(rules):
                columns = [self._typed(table[r], r, source.table.name) for r in self.types]
                typed = pa.table(columns, list(self.types))
                kept += typed.num_rows
                self.rows = kept + self.bad_rows.count
                if "weight" in self.types and typed.num_rows:
                    weighs |= pc.max(typed["weight"]).as_py() > 0
                yield from typed.to_batches()
        self.bad_rows.finish()
        if not kept:
            if self.rows:
                raise DataError(f"{self.name} has no row that can be used. {self.bad_rows}.")
            raise DataError(f"{self.name} has no rows; at least one interaction is needed.")
        if "weight" in self.types and not weighs:
            raise DataError(
                f"{self.name}: the weight of every row is 0, so nothing would be learned; give "
                "weights above 0, or leave the column out."
            )

    def _typed(self, column: pa.ChunkedArray, role: str, source: str) -> pa.ChunkedArray:
        """Return the column in its type; widen the type if it is too narrow."""
        kind, own = self.types[role], column.type
        if pa.types.is_integer(kind) and not pa.types.is_integer(own) and len(column):
            self.types[role] = pa.string() if is_text(own) else pa.float64()
            raise ReadAgainError
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:  # integers beyond 2⁵³ beside decimals
            raise rounded(source) from None


def sources_of_files(paths: Paths, columns: Mapping[str, str]) -> list[InteractionSource]:
    """Return the interactions of files, whose own names of the roles are `columns`."""
    check_roles(columns)
    return [source_of(TableStream(file), columns) for file in source_files(paths)]


def source_of(table: Table, columns: Mapping[str, str]) -> InteractionSource:
    """Return the interactions of a table; roles that `columns` does not name are columns of the
    same name, if there are any."""
    has = table.names
    columns = {role: name for role, name in columns.items() if role in ROLES}
    refuse_unknown(table.name, columns.values(), has)
    names = {role: role for role in ROLES} | columns
    absent = [side for side in SIDES if names[side] not in has]
    if absent:
        header = table.has_header_line
        raise DataError(lacking(table.name, absent, has, columns, header_line=header))
    if names["query"] == names["candidate"]:
        raise DataError(
            f"{table.name}: query and candidate are both the column {names['query']!r}; say in "
            "data.columns (--column candidate=NAME) which is the other."
        )
    chosen = {role: names[role] for role in ROLES if names[role] in has}
    for role, column in guess(has).items():
        if role in ("value", "time") and role not in chosen and column not in chosen.values():
            logging.getLogger(__name__).warning(
                '%s: its column %s is not read; if it is the %s, add %s = "%s" to data.columns '
                "(--column %s=%s).",
                *(table.name, column, role, role, column, role, column),
            )
    return InteractionSource(table, chosen)


def check_roles(columns: Mapping[str, str]) -> None:
    """Raises: DataError: a column is named for a role that there is not."""
    roles = (*ROLES, *(f"{side}_id" for side in SIDES))
    unknown = sorted(set(columns) - set(roles))
    if unknown:
        raise DataError(
            f"There is no column {unknown[0]!r} to name; name {', '.join(roles)}"
            f"{did_you_mean(unknown[0], roles)}."
        )


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


def _same_columns(sources: Sequence[InteractionSource]) -> list[str]:
    """Return the roles of all sources. Raises: DataError: one has a role that another has not."""
    first = sources[0]
    for source in sources[1:]:
        for one, other in ((first, source), (source, first)):
            lacks = [role for role in ROLES if role in one.names and role not in other.names]
            if lacks:
                raise DataError(
                    f"{one.table.name} has a column {one.names[lacks[0]]!r} and {other.table.name} "
                    f"has none; give all sources this column, or name another as {lacks[0]} in "
                    "neither."
                )
    return [role for role in ROLES if role in first.names]


# What is in memory. The module of an object's class tells its library, so that none of the
# libraries is imported, or has to be installed, for the sake of another.


def interactions_of(
    data: Any,
    names: Mapping[str, str],
) -> InteractionSource:
    """Return the interactions of a table, a sparse matrix or a list, see `Corpus.of`, by the own
    names of its columns."""
    if _library(data) == "scipy":
        return source_of(MemoryTable(_from_sparse(data), "The matrix"), {})
    is_list = isinstance(data, (list, tuple)) and len(data) > 0
    if is_list and isinstance(data[0], (tuple, list)) and not hasattr(data[0], "_asdict"):
        return source_of(MemoryTable(table_of(_from_tuples(data), "The list"), "The list"), {})
    source = f"The {_kind(data)}"
    table = table_of(data, source)
    return source_of(MemoryTable(table, source), names)


def table_of(data: Any, source: str) -> pa.Table:
    """Return a frame, a mapping of columns or a list of mappings as an Arrow table."""
    if isinstance(data, (list, tuple)) and not data:
        raise DataError(f"{source} has no rows; at least one interaction is needed.")
    table = None
    if _library(data) == "pandas" and hasattr(type(data), "columns"):
        refuse_repeated_names([str(name) for name in data.columns], source)
    if _library(data) not in ("pandas", "polars") or hasattr(type(data), "columns"):
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
    refuse_repeated_names(table.column_names, source)
    return table


def _arrow_table(data: Any) -> pa.Table | None:
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
        return _from_polars(data.collect() if hasattr(data, "collect") else data)
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


def _from_polars(data: Any) -> Any:
    """Return a frame or a series with plain strings; Arrow computes little with views of them."""
    return data.to_arrow(compat_level=sys.modules["polars"].CompatLevel.oldest())


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


def _from_sparse(matrix: Any) -> pa.Table:
    entries = matrix.tocoo()
    stored = entries.data != 0
    columns: dict[str, pa.Array] = {
        side: pa.array(place[stored].astype(np.int64))
        for side, place in zip(SIDES, (entries.row, entries.col), strict=True)
    }
    weight = entries.data[stored]
    if not (weight == 1).all():
        columns["weight"] = pa.array(weight.astype(np.float64))
    return pa.table(columns)


def _column(values: Any, name: str) -> pa.Array:
    """Return an Arrow array. Raises: DataError: the values have several types."""
    if _library(values) == "polars":
        return _from_polars(values)
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
        return decoded(pa.chunked_array(values))
    if isinstance(values, np.ndarray) and values.dtype != object:
        return pa.array(values)
    try:
        return pa.array(_alike_dates(list(values)))
    except (pa.ArrowException, OverflowError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise DataError(f"column {name!r}: {why}; give it values of one type.") from error


def _alike_dates(values: list[Any]) -> list[Any]:
    """Return dates of several kinds as texts: Arrow would take a time without a zone for one in
    UTC, and drop the time of a column that begins with a date."""
    dates = [value for value in values if isinstance(value, date) and value == value]
    kinds = {(isinstance(d, datetime), getattr(d, "tzinfo", None) is not None) for d in dates}
    if len(kinds) < 2:
        return values
    return [value.isoformat() if isinstance(value, date) else value for value in values]


def _library(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


def _kind(data: Any) -> str:
    return type(data).__name__
