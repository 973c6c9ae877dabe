"""`InteractionSource`, interactions of a file or in memory, and `Interactions`, all that are read
together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.reading.column_names import guess, lacking, refuse_unknown
from evergram.data.reading.rules import (
    ROLES,
    SIDES,
    BadRows,
    Clock,
    OtherFormError,
    Place,
    Rules,
    rounded,
)
from evergram.data.reading.source_files import SourceFile
from evergram.data.reading.table_stream import ROWS, MemoryTable, TableStream
from evergram.data.reading.text_files import DAMAGED, GzipReader
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.ids import is_text

# Bytes of text that are read at once; a line may be longer.
BLOCK = 8 << 20


def pairs_of_lines(path: Path) -> Iterator[pa.Table]:
    """Yield the pairs of lines `query candidate candidate …`, columns `query` and `candidate`, as
    texts, and `row`, the number of the line; of some lines at a time.

    The public splits of LightGCN and NGCF (Gowalla, Yelp2018, Amazon-Book) have this form. Ids are
    divided by white space. A line that names a query alone has no pair; a query may have several
    lines.

    Args:
        path: UTF-8, perhaps `.gz`.
    Raises: DataError: the file is damaged, is not in UTF-8, or has no pair.
    """
    row, size = 0, 0
    for text in _blocks(path):
        lists = [line.split() for line in text.splitlines()]
        table = _pairs(lists, row)
        row, size = row + len(lists), size + len(table)
        if len(table):
            yield table
    if not size:
        raise DataError(f"{path} has no pairs; a line must be a query and its candidates.")


def _pairs(lists: list[list[str]], first: int) -> pa.Table:
    """Return the pairs of lines, each a list of ids, after the `first` lines of the file."""
    each = pa.array(lists, pa.list_(pa.string()))
    ids, line = each.flatten(), pc.list_parent_indices(each)
    heads = pa.array([ids[0] if ids else None for ids in lists], pa.string())
    # The first id of each line is its query.
    tails = pa.array([place > 0 for line in lists for place in range(len(line))], pa.bool_())
    line = line.filter(tails)
    rows = pc.add(line.cast(pa.int64()), first + 1)
    return pa.table({"query": heads.take(line), "candidate": ids.filter(tails), "row": rows})


def _blocks(path: Path) -> Iterator[str]:
    """Yield whole lines of a file, about BLOCK bytes at a time."""
    waiting = bytearray()
    # A byte-order mark, which programs of Windows begin a file with, is no part of an id.
    encoding = "utf-8-sig"
    try:
        with GzipReader(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            while piece := file.read(BLOCK):
                waiting += piece
                end = waiting.rfind(b"\n") + 1
                if end:
                    yield waiting[:end].decode(encoding)
                    encoding = "utf-8"
                    del waiting[:end]
        yield waiting.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8; save the file as UTF-8.") from error
    except DAMAGED as error:
        raise DataError(f"{path} cannot be read: {error}; fetch it again.") from error


T = TypeVar("T")


@dataclass(frozen=True)
class InteractionSource:
    """Interactions that can be read more than once.

    Args:
        name: for errors.
        names: by role (query, candidate, perhaps value, time, weight) the source's own name of its
            column.
        read: returns an iterator of its batches, with a column a role; and "row", int64, if the
            rows of the file have another number than those of the batches, from 1.
        texts: roles whose cells come from a file of text or the name of a folder, in which ids may
            be integers.
        unread: the source's other columns.
    """

    name: str
    names: Mapping[str, str]
    read: Callable[[], Iterable[pa.RecordBatch]]
    texts: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()

    def tables(self, rules: Rules) -> Iterator[pa.Table]:
        """Yield its batches, checked: ids as int64 or string, `value` and `weight` as float32, and
        `time` as int64 or float64. In a text, ids are of the type that the batch alone suggests.

        Raises: DataError: the file is damaged, or see `Rules.checked`.
        """
        row = 0
        for batch in self.read():
            table, rows = pa.Table.from_batches([batch]), None
            if "row" in table.column_names:
                rows, table = batch["row"], table.drop("row")
            if batch.num_rows:
                yield rules.checked(table, Place(self.name, row, self.names, self.texts, rows))
            row += batch.num_rows


class _WidenedError(Exception):
    """A column holds what its type so far cannot; all is read again with the wider type."""


@dataclass
class Interactions:
    """The interactions of all sources that are read together, in their order.

    Args:
        sources: at least one.
        shared_ids: the ids of both sides are of one type.
        bad_rows: what is done with rows that cannot be used.
        clock: how times are written in what is there already.
        types: of some roles, whatever the sources hold: of ids string, of times float64.
        weights: by name of an event the weight of its rows, if the column of weights holds names.
    Attributes:
        rows: rows of the sources, once they were read.
        types: the type of each role.
    Raises: DataError: one source lacks a column that another has.
    """

    sources: Sequence[InteractionSource]
    shared_ids: bool = False
    bad_rows: BadRows = field(default_factory=BadRows)
    clock: Clock = field(default_factory=Clock)
    types: dict[str, pa.DataType] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0

    def __post_init__(self) -> None:
        check_weights(self.weights)
        if self.weights and "weight" not in self.sources[0].names:
            raise DataError(
                f"There are weights of events, such as {min(self.weights)!r}, and {self.name} has "
                'no column of them; name it, as in columns = {weight = "event"} '
                "(--column weight=event)."
            )
        # The narrowest types; a row may widen them.
        narrow = dict.fromkeys([*SIDES, "time"], pa.int64())
        least = self.types
        self.types = {
            role: least.get(role, narrow.get(role, pa.float32()))
            for role in _same_columns(self.sources)
        }

    @property
    def name(self) -> str:
        """What errors call them."""
        return self.sources[0].name

    def table(self) -> pa.Table:
        """Return all of them, and warn of bad rows that were dropped. Raises: DataError: see
        `read`."""
        table = self.read(lambda schema, batches: pa.Table.from_batches(batches, schema))
        self.bad_rows.warn()
        return table

    def read(self, take: Callable[[pa.Schema, Iterator[pa.RecordBatch]], T]) -> T:
        """Return what a function makes of their schema and batches; it is called again where a
        type proves to be too narrow.

        Raises: DataError: the sources have no row, a row that cannot be used, or no weight above 0.
        """
        second_form: dict[str, str] = {}
        while True:
            if self.shared_ids and pa.string() in (self.types["query"], self.types["candidate"]):
                self.types |= dict.fromkeys(SIDES, pa.string())
            try:
                return take(pa.schema(list(self.types.items())), self._batches(second_form))
            except _WidenedError:
                continue  # `types` holds the wider type
            except OtherFormError as error:
                second_form[error.role] = error.where

    def _batches(self, second_form: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        self.rows, weighs = 0, False
        self.bad_rows.reset()
        clock = Clock(self.clock.form, self.clock.place)
        rules = Rules(self.bad_rows, clock, self.weights, second_form)
        kept = 0
        for source in self.sources:
            for table in source.tables(rules):
                columns = [self._typed(table[r], r, source.name) for r in self.types]
                typed = pa.table(columns, list(self.types))
                kept += typed.num_rows
                self.rows = kept + self.bad_rows.count
                if "weight" in self.types and typed.num_rows:
                    weighs |= pc.max(typed["weight"]).as_py() > 0
                yield from typed.to_batches()
        rules.finish()
        if not kept:
            if self.rows:
                raise DataError(f"{self.name} has no row that can be used. {self.bad_rows}.")
            raise DataError(f"{self.name} has no rows; at least one interaction is needed.")
        if "weight" in self.types and not weighs:
            raise DataError(
                f"{self.name}: the weight of every row is 0, so nothing would be learned; give "
                "weights above 0, or leave the column out."
            )
        self.clock = rules.clock

    def _typed(self, column: pa.ChunkedArray, role: str, source: str) -> pa.ChunkedArray:
        """Return the column in its type; widen the type if it is too narrow."""
        kind, own = self.types[role], column.type
        if pa.types.is_integer(kind) and not pa.types.is_integer(own) and len(column):
            self.types[role] = pa.string() if is_text(own) else pa.float64()
            raise _WidenedError
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:  # integers beyond 2⁵³ beside decimals
            raise rounded(source) from None


def sources_of_files(
    files: Iterable[SourceFile], columns: Mapping[str, str]
) -> list[InteractionSource]:
    """Return the interactions of files, whose own names of the roles are `columns`.

    Raises: DataError: a file cannot be read, or lacks a column.
    """
    check_roles(columns)
    return [source_of(TableStream(file), columns) for file in files]


def source_of(stream: TableStream | MemoryTable, columns: Mapping[str, str]) -> InteractionSource:
    """Return the interactions of a table, see `sources_of_files`."""
    chosen = _chosen_columns(stream, columns)
    for role, column in guess(stream.names).items():
        if role in ("value", "time") and role not in chosen and column not in chosen.values():
            logging.getLogger(__name__).warning(
                '%s: its column %s is not read; if it is the %s, add %s = "%s" to data.columns '
                "(--column %s=%s).",
                *(stream.name, column, role, role, column, role, column),
            )

    def read() -> Iterator[pa.RecordBatch]:
        # Two roles may share a column, as value and weight.
        for batch in stream.batches(list(dict.fromkeys(chosen.values()))):
            yield pa.record_batch({role: batch[name] for role, name in chosen.items()})

    texts = frozenset(role for role, name in chosen.items() if name in stream.texts)
    unread = tuple(name for name in stream.names if name not in chosen.values())
    return InteractionSource(stream.name, chosen, read, texts, unread)


def source_of_adjacency_list(path: Path) -> InteractionSource:
    """Return the pairs of an adjacency list in the order of the file, see `pairs_of_lines`."""

    def read() -> Iterator[pa.RecordBatch]:
        for table in pairs_of_lines(path):
            yield from table.combine_chunks().to_batches(max_chunksize=ROWS)

    names = {side: side for side in SIDES}
    return InteractionSource(str(path), names, read, frozenset(SIDES))


def check_weights(weights: Mapping[str, float]) -> None:
    """Raises: DataError: the weight of an event is not a finite number of at least 0."""
    for name, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise DataError(f"The weight of {name!r} is {weight}; give a number of at least 0.")


def check_roles(columns: Mapping[str, str]) -> None:
    """Raises: DataError: a column is named for a role that there is not."""
    roles = (*ROLES, *(f"{side}_id" for side in SIDES))
    unknown = sorted(set(columns) - set(roles))
    if unknown:
        raise DataError(
            f"There is no column {unknown[0]!r} to name; name {', '.join(roles)}"
            f"{did_you_mean(unknown[0], roles)}."
        )


def names_of_ids(columns: Mapping[str, str], side: str) -> list[str]:
    """Return the names that the column of ids may have in a side's table of features, the likeliest
    first: the one in `columns`; or else `id`, or what the interactions call the side."""
    named = columns.get(f"{side}_id")
    return ["id", columns.get(side, side)] if named is None else [named]


def _chosen_columns(
    stream: TableStream | MemoryTable, columns: Mapping[str, str]
) -> dict[str, str]:
    """Return the column of each role that a table has; those that `columns` does not name are
    called as their roles.

    Raises: DataError: it lacks the query, the candidate or a column of `columns`.
    """
    has = stream.names
    columns = {role: name for role, name in columns.items() if role in ROLES}
    refuse_unknown(stream.name, columns.values(), has)
    names = {role: role for role in ROLES} | dict(columns)
    absent = [side for side in SIDES if names[side] not in has]
    if absent:
        header = stream.has_header_line
        raise DataError(lacking(stream.name, absent, has, columns, header_line=header))
    if names["query"] == names["candidate"]:
        raise DataError(
            f"{stream.name}: query and candidate are both the column {names['query']!r}; say in "
            "data.columns (--column candidate=NAME) which is the other."
        )
    return {role: names[role] for role in ROLES if names[role] in has}


def _same_columns(sources: Sequence[InteractionSource]) -> list[str]:
    """Return the roles of all sources. Raises: DataError: one has a role that another has not."""
    first = sources[0]
    for source in sources[1:]:
        for one, other in ((first, source), (source, first)):
            lacks = [role for role in ROLES if role in one.names and role not in other.names]
            if lacks:
                raise DataError(
                    f"{one.name} has a column {one.names[lacks[0]]!r} and {other.name} has none; "
                    f"give all sources this column, or name another as {lacks[0]} in neither."
                )
    return [role for role in ROLES if role in first.names]
