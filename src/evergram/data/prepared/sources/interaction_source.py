"""`InteractionSource`: interactions in batches, from a file or from memory, checked row by row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from evergram.data.columnar.interactions import checked_interactions
from evergram.data.files.column_names import guess, has_no_header, refuse_unknown
from evergram.data.prepared.sources.source_files import SourceFile
from evergram.data.prepared.sources.table_stream import TableStream
from evergram.data.prepared.sources.text_columns import TextIds, numbers_of_text, times_of_text
from evergram.errors import DataError

ROLES = ("query", "candidate", "value", "time", "weight")


class Clock:
    """How times are written, which must be one way in all sources: as numbers or as dates."""

    def __init__(self) -> None:
        self._first: tuple[bool, str] | None = None

    def see(self, kind: pa.DataType, where: str) -> None:
        """Note the type of times. Raises: DataError: it is of the other way."""
        dates = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        if self._first is None:
            self._first = (dates, where)
        elif self._first[0] != dates:
            places = [self._first[1], where]
            number, date = places if dates else places[::-1]
            raise DataError(
                f"Times are numbers at {number} and dates at {date}; write all of them in one way."
            )


@dataclass(frozen=True)
class InteractionSource:
    """Interactions that can be read more than once.

    Args:
        name: for errors.
        types: by role (query, candidate, perhaps value, time, weight) the type of its column as it
            is stored; strings of a text file, whose ids may be integers.
        is_text: True for a file of text.
        read: returns an iterator of its batches, with a column a role.
        unread: the file's other columns.
    """

    name: str
    types: Mapping[str, pa.DataType]
    is_text: bool
    read: Callable[[], Iterable[pa.RecordBatch]]
    unread: tuple[str, ...] = ()

    def tables(self, clock: Clock) -> Iterator[pa.Table]:
        """Yield its batches, checked: ids as int64 or string, `value` and `weight` as float32, and
        `time` as int64 or float64.

        In a text, ids and times are of the type that the batch alone suggests.

        Args:
            clock: of all sources.
        Raises: DataError: as of `Corpus.from_tables`; or the file is damaged; the row is named; or
            times are written otherwise than before.
        """
        row = 0
        texts = {role: TextIds(self.name, role) for role in ("query", "candidate")}
        for batch in self.read():
            if not batch.num_rows:
                continue
            table = pa.Table.from_batches([batch])
            if self.is_text:
                columns: dict[str, pa.ChunkedArray] = {}
                for role in table.column_names:
                    if role in texts:
                        columns[role] = texts[role].convert(table[role], row)
                    else:
                        convert = times_of_text if role == "time" else numbers_of_text
                        columns[role] = convert(table[role], role, self.name, row)
                table = pa.table(columns)
            if "time" in table.column_names:
                clock.see(table.schema.field("time").type, f"{self.name} row {row + 1}")
            checked = checked_interactions(table, self.name, first_row=row)
            yield checked
            row += batch.num_rows
        for ids in texts.values():
            ids.finish()


def source_of_file(file: SourceFile, columns: Mapping[str, str]) -> InteractionSource:
    """Return the interactions of a file.

    Args:
        columns: the file's own names of the roles.
    Raises: DataError: the file cannot be read, or lacks a column.
    """
    stream = TableStream(file)
    chosen = _chosen_columns(stream, columns)
    types = {role: stream.schema.field(name).type for role, name in chosen.items()}
    if file.is_text:
        types = dict.fromkeys(types, pa.string())

    def read() -> Iterator[pa.RecordBatch]:
        # Two roles may share a column, as value and weight.
        names = list(dict.fromkeys(chosen.values()))
        for batch in stream.batches(names):
            yield pa.record_batch({role: batch[name] for role, name in chosen.items()})

    unread = tuple(name for name in stream.names if name not in chosen.values())
    return InteractionSource(file.name, types, file.is_text, read, unread)


def same_columns(sources: Sequence[InteractionSource]) -> list[str]:
    """Return the roles that all sources have, in order.

    Raises: DataError: one source lacks a column that another has.
    """
    first = sources[0]
    for source in sources[1:]:
        for one, other in ((first, source), (source, first)):
            lacks = [role for role in ROLES if role in one.types and role not in other.types]
            if lacks:
                raise DataError(
                    f"{one.name} has a column {lacks[0]!r} and {other.name} has none; give all "
                    f"sources this column, or name another as {lacks[0]} in neither."
                )
    return [role for role in ROLES if role in first.types]


def _chosen_columns(stream: TableStream, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each role that a file has. Raises: DataError: it lacks one."""
    name, has = stream.file.name, stream.names
    refuse_unknown(name, columns.values(), has)
    names = {role: role for role in ROLES} | dict(columns)
    absent = [role for role in ("query", "candidate") if names[role] not in has]
    if absent:
        raise DataError(_lacking(stream, absent, columns))
    if names["query"] == names["candidate"]:
        raise DataError(
            f"{name}: query and candidate are both the column {names['query']!r}; name the other "
            "by --column candidate=NAME."
        )
    for role, column in guess(has).items():
        if role in ("value", "time") and names[role] not in has and column not in names.values():
            logging.getLogger(__name__).warning(
                "%s: its column %s is not read; if it is the %s, add --column %s=%s.",
                *(name, column, role, role, column),
            )
    return {role: names[role] for role in ROLES if names[role] in has}


def _lacking(stream: TableStream, absent: Sequence[str], columns: Mapping[str, str]) -> str:
    name, has = stream.file.name, stream.names
    start = f"{name} has no column {absent[0]!r}"
    if stream.file.is_text and has_no_header(has):
        return (
            f"{start}, and its first line ({', '.join(has)}) seems to be a row: write a line above "
            "it that names its columns, such as query,candidate,value,time."
        )
    seems = {r: n for r, n in guess(has).items() if n not in columns.values()} | dict(columns)
    wanted = ["query", "candidate", *(r for r in ("value", "time") if r in seems)]
    options = " ".join(f"--column {role}={seems.get(role, '…')}" for role in wanted)
    doubt = "with the right names in place of …" if "…" in options else "if that is right"
    return f"{start}; its columns are: {', '.join(has)}. Say which is which, {doubt}: {options}"
