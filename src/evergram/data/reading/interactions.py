"""`InteractionSources`: interactions from several files or tables, read with the same rules so that
the result depends neither on the order of rows nor on how files divide them:

- Ids are int64 if all are integers, else strings. In a text file, an integer has no leading zeros
  and no plus sign.
- Values and weights are float32.
- Times are numbers in one unit, dates with a time zone, or dates without one; they cannot be mixed.
  They become int64 (dates in microseconds), or float64 if one has decimals.
- A row with a missing id, or with an invalid number or time, is a bad row.

Tables with an id column, such as features, follow the same rules: `keyed_table`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.reading.files import (
    DAMAGED,
    MemoryTable,
    Paths,
    Table,
    TableStream,
    guess,
    missing_columns,
    refuse_repeated_names,
    refuse_unknown,
    source_files,
    unpacked,
)
from evergram.data.rolling_window import UNITS, unit_range
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, clause_of
from evergram.file_content import refuse_other_content
from evergram.ids import (
    BROKEN,
    INTEGER,
    NUMBER,
    is_text,
    missing_cells,
    refuse_other_form,
    refuse_repeats,
)

ROLES = ("query", "candidate", "value", "time", "weight")
SideName: TypeAlias = Literal["query", "candidate"]
SIDES: tuple[SideName, SideName] = ("query", "candidate")
# The fields of tuples, in order.
TUPLE = ("query", "candidate", "weight", "time")
KINDS = (
    "a DataFrame of pandas or Polars, an Arrow table, a SciPy sparse matrix, a mapping of names to "
    "columns, or a list of tuples (query, candidate) or of mappings"
)
BadRowsChoice: TypeAlias = Literal["refuse", "drop"]
HOW_TO_DROP = "bad_rows = 'drop' in a recipe's [data] (`--drop-bad-rows` of init and prepare)"
# Numbers and dates in text.
FLOAT_CELL = rf"{NUMBER}|^[+-]?(?i:nan|inf|infinity)$"
_DATE = r"^\d{4}-\d\d-\d\d([T ]\d\d(:?\d\d(:?\d\d(\.\d{1,9})?)?)?)?"
ZONED, NAIVE, NUMBERS = "dates with a time zone", "dates without a time zone", "numbers"
_FORMATS = {NUMBERS: NUMBER, NAIVE: rf"{_DATE}$", ZONED: rf"{_DATE}(Z|[+-]\d\d(:?\d\d)?)$"}
TIMES = (
    "write all times in the same format: Unix times in one unit, or ISO 8601 such as 2024-05-31, "
    "2024-05-31T12:00:00 (all without a zone) or 2024-05-31T12:00:00Z (all with one)"
)
A_TIME = "a number or an ISO 8601 date such as 2024-05-31 or 2024-05-31T12:00:00Z"
# Microseconds in each of Arrow's units, at least 1.
_MICROSECONDS = {"D": 86_400_000_000, "s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
BAG = pa.list_(pa.string())
ID = "id"
# A mask of bad cells, and what they must be.
Fault: TypeAlias = tuple[pa.Array, str]
T = TypeVar("T")


@dataclass(frozen=True)
class SourceRows:
    """Identifies consecutive rows of a source for error messages."""

    source: str  # the source's name
    first_row: int = 0  # the number of rows before these
    names: Mapping[str, str] = field(default_factory=dict)  # the source's column names by role
    texts: frozenset[str] = frozenset()  # the roles whose columns come from a text file

    def cell(self, row: int, role: str, cells: pa.Array) -> str:
        """Return a clause with a cell's row, column and content."""
        cell = cells[row]
        try:
            shown = repr(cell.as_py()) if is_text(cells.type) else str(cell.as_py())
        except (OverflowError, ValueError):  # a date outside Python's range
            shown = str(cell.cast(pa.int64()).as_py())
        shown = "empty" if is_blank(cells.slice(row, 1))[0].as_py() else shown
        row += self.first_row + 1
        return f"{self.source} row {row}: {self.names.get(role, role)} is {shown}"


@dataclass
class BadRows:
    """Counts invalid rows by column and reason.

    Attributes:
        count: bad rows so far.
        reasons: by column and reason, the number of rows and a sentence about the first one.
    """

    # "drop" leaves them out; "refuse" raises an error once all rows were read.
    choice: BadRowsChoice = "refuse"
    advice: bool = True  # True if the error explains how to drop them
    count: int = 0
    reasons: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    def good_rows(
        self, rows: SourceRows, columns: Mapping[str, tuple[pa.Array, Iterable[Fault]]], size: int
    ) -> pa.Array:
        """Count a batch's bad rows by role; return a mask of the good rows, bool [n]."""
        good = pa.array(np.ones(size, bool))
        for role, (cells, faults) in columns.items():
            for bad, required in faults:
                row = pc.index(bad, True).as_py()
                if row >= 0:
                    key = rows.names.get(role, role), required
                    sentence = f"{rows.cell(row, role, cells)}; it must be {required}"
                    count, first = self.reasons.get(key, (0, sentence))
                    self.reasons[key] = count + bad.true_count, first
                    good = pc.and_not(good, bad)
        self.count += size - good.true_count
        return good

    def finish(self, *, some_good: bool = True) -> None:
        """If there are bad rows, raise a DataError ("refuse") or log a warning ("drop")."""
        if self.count and self.choice != "drop":
            them = "it" if self.count == 1 else "them"
            how = f", or leave {them} out with {HOW_TO_DROP}" if self.advice and some_good else ""
            raise DataError(f"{self}. Correct {them}{how}.")
        if self.count:
            logging.getLogger(__name__).warning("Bad rows were dropped: %s.", self)

    def sentences(self) -> list[str]:
        """Return a sentence for each column and reason, without a full stop."""
        return [
            sentence + (f" ({count:,} such rows)" if count > 1 else "")
            for count, sentence in self.reasons.values()
        ]

    def __str__(self) -> str:
        several = self.count > 1 and len(self.reasons) > 1
        total = f"{self.count:,} rows cannot be used. " if several else ""
        return total + ". ".join(self.sentences())


class ReadAgainError(Exception):
    """A column needs a wider type than assumed so far, so reading starts again."""


@dataclass(frozen=True)
class InteractionSource:
    """A table of interactions, and its column names by role."""

    table: Table
    names: Mapping[str, str]

    @property
    def unread(self) -> list[str]:
        return [name for name in self.table.names if name not in self.names.values()]


@dataclass
class InteractionSources:
    """The interactions of several sources, in their order.

    Attributes:
        rows: the number of rows read.
        types: the type of each role.
    Raises: DataError: one source lacks a column that another has.
    """

    sources: Sequence[InteractionSource]  # at least one
    shared_ids: bool = False  # True gives the ids of both sides the same type
    bad_rows: BadRows = field(default_factory=BadRows)  # how to treat invalid rows
    types: dict[str, pa.DataType] = field(init=False)
    rows: int = field(default=0, init=False)
    # The formats of times so far, each with its first example.
    _formats: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        first = self.sources[0]
        for source in self.sources[1:]:
            for a, b in ((first, source), (source, first)):
                absent = [role for role in ROLES if role in a.names and role not in b.names]
                if absent:
                    raise DataError(
                        f"{a.table.name} has a column {a.names[absent[0]]!r} and {b.table.name} "
                        "does not; add this column to all sources or remove it from all."
                    )
        # Start with the narrowest types; rows may widen them.
        narrow = dict.fromkeys([*SIDES, "time"], pa.int64())
        self.types = {r: narrow.get(r, pa.float32()) for r in ROLES if r in first.names}

    def table(self) -> pa.Table:
        """Return all interactions, see `read`."""
        return self.read(lambda schema, batches: pa.Table.from_batches(batches, schema))

    def read(self, consume: Callable[[pa.Schema, Iterator[pa.RecordBatch]], T]) -> T:
        """Return `consume(schema, batches)`; call it again if a type proves too narrow."""
        while True:
            if self.shared_ids and pa.string() in (self.types["query"], self.types["candidate"]):
                self.types |= dict.fromkeys(SIDES, pa.string())
            with suppress(ReadAgainError):  # which has widened `types`
                return consume(pa.schema(list(self.types.items())), self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        good, has_weight = 0, False
        self.bad_rows.count = 0
        self.bad_rows.reasons.clear()
        self._formats.clear()
        for source in self.sources:
            texts = frozenset(r for r, name in source.names.items() if name in source.table.texts)
            row = 0
            # Two roles may share a column, such as value and weight.
            for batch in source.table.batches(list(dict.fromkeys(source.names.values()))):
                if not batch.num_rows:
                    continue
                table = pa.table({role: batch[name] for role, name in source.names.items()})
                rows = SourceRows(source.table.name, row, source.names, texts)
                table = self._checked(table, rows)
                row += batch.num_rows
                good += table.num_rows
                self.rows = good + self.bad_rows.count
                if "weight" in self.types and table.num_rows:
                    has_weight |= pc.max(table["weight"]).as_py() > 0
                yield from table.to_batches()
        self.bad_rows.finish(some_good=good > 0)
        name = self.sources[0].table.name
        if not good:
            if self.bad_rows.count:
                raise DataError(f"{name} has no usable row. {self.bad_rows}.")
            raise DataError(f"{name} has no rows; at least one interaction is needed.")
        if "weight" in self.types and not has_weight:
            raise DataError(
                f"{name}: the weight of every row is 0, so nothing would be learned; give weights "
                "above 0, or leave the column out."
            )

    def _checked(self, table: pa.Table, rows: SourceRows) -> pa.Table:
        """Drop the bad rows of a batch and cast it to `types`, which are widened if too narrow."""
        columns: dict[str, pa.Array] = {}
        faults: dict[str, tuple[pa.Array, list[Fault]]] = {}
        for role in self.types:
            cells, name = decoded(table[role]), rows.names[role]
            if role in SIDES:
                refuse_non_ids(cells.type, name, rows.source, cells[0].as_py())
                columns[role], found = ids_of_cells(cells, text_file=role in rows.texts)
            elif role == "time":
                times = comparable(cells, name, rows.source, dates=True)
                columns[role], found, formats = _times(times)
                self._refuse_mixed_formats(formats, rows, cells)
            else:
                numbers = comparable(cells, name, rows.source)
                columns[role], found = float_cells(numbers, pa.float32(), positive=role == "weight")
            faults[role] = cells, found
        good = self.bad_rows.good_rows(rows, faults, table.num_rows)
        result = pa.table(columns)
        result = result if good.true_count == len(good) else result.filter(good)
        for role, kind in self.types.items():
            found_type = result[role].type
            if pa.types.is_integer(kind) and not pa.types.is_integer(found_type) and len(result):
                self.types[role] = pa.string() if is_text(found_type) else pa.float64()
                raise ReadAgainError
        return result.cast(pa.schema(list(self.types.items())), safe=False)

    def _refuse_mixed_formats(
        self, formats: Mapping[str, pa.Array], rows: SourceRows, cells: pa.Array
    ) -> None:
        """Raise a DataError if times have another format than earlier ones."""
        for name, mask in formats.items():
            row = pc.index(mask, True).as_py()
            if row >= 0:
                self._formats.setdefault(name, rows.cell(row, "time", cells))
        # A small number, such as a counter or a time before 1980, does not reveal its unit.
        has_dates = any(not name.startswith(NUMBERS) for name in self._formats)
        certain = [name for name in self._formats if has_dates or name != NUMBERS]
        if len(certain) > 1:
            both = " and ".join(f"{name} ({self._formats[name]})" for name in certain[:2])
            raise DataError(f"Times are {both}; {TIMES}.")


def decoded(cells: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, dictionaries decoded and all text types as string."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    cells = cells.cast(pa.string()) if is_text(cells.type) else cells
    return cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells


def refuse_non_ids(kind: pa.DataType, name: str, source: str, example: object = None) -> None:
    """Raise a DataError unless a type is integer, string or null."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or is_text(kind) or pa.types.is_null(kind)):
        first = "" if example is None else f" (the first is {example})"
        raise DataError(
            f"{source} column {name!r} is {kind}{first}; ids must be integers or strings."
        )


def ids_of_cells(cells: pa.Array, *, text_file: bool) -> tuple[pa.Array, list[Fault]]:
    """Convert cells to ids, int64 or string; return them with null in bad cells, and the faults. In
    a text file, canonical integers become int64, and words such as NULL are missing values."""
    missing, blank = missing_cells(cells, text_file=text_file), is_blank(cells)
    faults: list[Fault] = []
    if text_file:
        broken = _true(pc.match_substring_regex(cells, BROKEN))
        close = "close the quotation mark before it, or write the table as Parquet"
        faults.append((broken, f"an id, without a line feed or a NUL byte; {close}"))
        missing = pc.and_not(missing, broken)
        # pandas writes integers as 7.0 if the column has missing values; "7.0" would be another id.
        whole = _true(pc.match_substring_regex(cells, r"^-?\d+\.0+$"))
        if pc.all(pc.or_(whole, missing)).as_py():
            faults.append((whole, "an integer without decimals"))
    hint = "; in a text file this word means a missing value" if text_file else ""
    faults += [(pc.and_(missing, blank), "an id"), (pc.and_not(missing, blank), f"an id{hint}")]
    values = _without(cells, faults)
    if not is_text(values.type):
        try:
            return values.cast(pa.int64()), faults
        except pa.ArrowInvalid:  # larger than int64
            return values.cast(pa.string()), faults
    if text_file and all_match(values, INTEGER):
        with suppress(pa.ArrowInvalid):
            return values.cast(pa.int64()), faults
    return values, faults


def float_cells(
    cells: pa.Array, kind: pa.DataType, *, positive: bool
) -> tuple[pa.Array, list[Fault]]:
    """Convert numbers or texts to floats; return them with null in bad cells, and the faults."""
    faults: list[Fault] = []
    if is_text(cells.type):
        cells = parse_numbers(cells)
        faults.append((pc.is_null(cells), "a number"))
    # Not safe=True, because float32 may round large counts.
    values = cells.cast(kind, safe=False)
    infinite = _not_finite(values)
    if faults:
        infinite = pc.and_not(infinite, faults[0][0])
    faults.append((infinite, f"a finite number of {kind.bit_width} bits"))
    if positive:
        faults.append((_true(pc.less(values, 0)), "a finite number of at least 0"))
    return _without(values, faults), faults


def comparable(cells: pa.Array, name: str, source: str, *, dates: bool = False) -> pa.Array:
    """Convert numbers, dates or texts to a type that Arrow's compute functions accept."""
    kind = cells.type
    if is_text(kind):
        return pc.utf8_trim_whitespace(cells)
    if pa.types.is_decimal(kind) or pa.types.is_null(kind) or pa.types.is_float16(kind):
        return cells.cast(pa.float64())
    if is_number(kind) or (dates and is_date(kind)):
        return cells
    required = A_TIME if dates else "a number"
    raise DataError(f"{source} column {name!r} is {kind}; it must be {required}.")


def _times(cells: pa.Array) -> tuple[pa.Array, list[Fault], dict[str, pa.Array]]:
    """Return times with null in bad cells, the faults, and a mask of the cells in each format."""
    if is_text(cells.type):
        masks = {f: _true(pc.match_substring_regex(cells, p)) for f, p in _FORMATS.items()}
        formats = [name for name, mask in masks.items() if mask.true_count]
        if len(formats) > 1:  # the caller raises an error
            return pa.nulls(len(cells), pa.int64()), [], {name: masks[name] for name in formats}
        text_format = formats[0] if formats else NUMBERS
        texts = pc.if_else(masks[text_format], cells, None)
        if text_format == NUMBERS:
            texts = pc.utf8_ltrim(texts, "+")
            try:
                cells = texts.cast(pa.int64())
            except pa.ArrowInvalid:
                cells = texts.cast(pa.float64())
        else:
            cells = parse_dates(texts, "UTC" if text_format == ZONED else None)
    kind = cells.type
    if is_date(kind):
        unit = "D" if pa.types.is_date32(kind) else getattr(kind, "unit", "ms")
        numbers = cells.cast(pa.int32() if unit == "D" else pa.int64()).cast(pa.int64())
        limit: float = (2**63 - 1) // _MICROSECONDS[unit]
    elif pa.types.is_floating(kind) or (
        pa.types.is_uint64(kind) and (pc.max(cells).as_py() or 0) >= 2**63
    ):
        numbers, limit = cells.cast(pa.float64(), safe=False), 2.0**63
    else:
        numbers, limit = cells.cast(pa.int64()), 2**63 - 1
    invalid = _not_finite(numbers)
    beyond = pc.or_(pc.greater_equal(numbers, limit), pc.less_equal(numbers, -limit))
    faults = [
        (invalid, A_TIME),
        (
            pc.and_not(_true(beyond), invalid),
            "a time within 64 bits, and not a placeholder for a missing one",
        ),
    ]
    values = _without(numbers, faults)
    if is_date(kind):
        zone = kind.tz if pa.types.is_timestamp(kind) else None
        values = _without(cells, faults).cast(pa.timestamp("us", zone), safe=False)
        date_format = NAIVE if zone is None else ZONED
        return values.cast(pa.int64()), faults, {date_format: pc.is_valid(values)}
    by_unit, rest = {}, pc.is_valid(values)
    as_type = float if pa.types.is_floating(values.type) else int
    for unit in UNITS:
        low, high = (pa.scalar(as_type(end)) for end in unit_range(unit))
        inside = _true(pc.and_(pc.greater_equal(values, low), pc.less(values, high)))
        by_unit[f"{NUMBERS} in {unit}"] = inside
        rest = pc.and_not(rest, inside)
    return values, faults, {**by_unit, NUMBERS: rest}


def is_date(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def all_match(texts: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False


def parse_numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parse texts as float64; null where a text is not a number."""
    trimmed = pc.utf8_trim_whitespace(texts)
    trimmed = pc.if_else(pc.match_substring_regex(trimmed, FLOAT_CELL), trimmed, None)
    return pc.utf8_ltrim(trimmed, "+").cast(pa.float64())


def parse_dates(texts: pa.Array, zone: str | None) -> pa.Array:
    """Parse ISO 8601 dates as timestamps; null where one is invalid, such as in a 13th month."""
    kind = pa.timestamp("us", zone)
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        moments: list[int | None] = []
        for text in texts:
            moments.append(None)
            with suppress(pa.ArrowInvalid):
                moments[-1] = text.cast(kind).value
        return pa.array(moments, pa.int64()).cast(kind)


def is_blank(cells: pa.Array) -> pa.Array:
    """Return a mask, True where a cell is null or has no text but spaces."""
    blank = pc.is_null(cells)
    if is_text(cells.type):
        blank = pc.or_(blank, _true(pc.equal(pc.utf8_trim_whitespace(cells), "")))
    return blank


def _not_finite(numbers: pa.Array) -> pa.Array:
    if pa.types.is_floating(numbers.type):
        return pc.invert(_true(pc.is_finite(numbers)))
    return pc.is_null(numbers)


def _without(cells: pa.Array, faults: Iterable[Fault]) -> pa.Array:
    """Replace bad cells by null."""
    for bad, _ in faults:
        if bad.true_count:
            cells = pc.if_else(bad, pa.scalar(None, cells.type), cells)
    return cells


def _true(mask: pa.Array) -> pa.Array:
    """Replace the nulls of a mask by False."""
    return pc.fill_null(mask, False)


def sources_of_files(paths: Paths, columns: Mapping[str, str]) -> list[InteractionSource]:
    """Return the interactions of files; `columns` has the files' column names by role."""
    check_roles(columns)
    sources = []
    for file in source_files(paths):
        source = source_of(TableStream(file), columns)
        for name, sign, _ in (folder.partition("=") for folder in Path(file.path).parts[:-1]):
            if sign and name in ROLES and name not in source.names:
                raise DataError(
                    f"{file.name}: the name of the folder {name}=… is not read as a column; add a "
                    f"column {name} to the files."
                )
        sources.append(source)
    return sources


def source_of(table: Table, columns: Mapping[str, str]) -> InteractionSource:
    """Return a table's interactions; a role not in `columns` uses a column of its own name."""
    names = table.names
    chosen = {role: name for role, name in columns.items() if role in ROLES}
    refuse_unknown(table.name, chosen.values(), names)
    by_role = {role: role for role in ROLES} | chosen
    absent = [side for side in SIDES if by_role[side] not in names]
    if absent:
        raise DataError(missing_columns(table, absent, chosen, names))
    if by_role["query"] == by_role["candidate"]:
        raise DataError(
            f"{table.name}: query and candidate are both the column {by_role['query']!r}; name the "
            "other one in data.columns (--column candidate=NAME)."
        )
    by_role = {role: name for role, name in by_role.items() if name in names}
    for role, column in guess(names).items():
        if role in ("value", "time") and role not in by_role and column not in by_role.values():
            logging.getLogger(__name__).warning(
                '%s: its column %s is not read; if it is the %s, add %s = "%s" to data.columns '
                "(--column %s=%s).",
                table.name,
                column,
                role,
                role,
                column,
                role,
                column,
            )
    return InteractionSource(table, by_role)


def check_roles(columns: Mapping[str, str]) -> None:
    """Raises: DataError: a column has an unknown role."""
    roles = (*ROLES, *(f"{side}_id" for side in SIDES))
    unknown = sorted(set(columns) - set(roles))
    if unknown:
        raise DataError(
            f"The column role {unknown[0]!r} is unknown; the roles are {', '.join(roles)}"
            f"{did_you_mean(unknown[0], roles)}."
        )


def adjacency_list(path: Path) -> Table:
    """Return the pairs of a UTF-8 file, optionally `.gz`, with lines `query candidate candidate …`,
    like LightGCN's public splits. A query may have several lines, or no candidates."""
    try:
        with unpacked(path) as file:
            # "-sig" drops the byte-order mark that Windows programs write.
            lines = [line.split() for line in file.read().decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8; save the file as UTF-8.") from error
    except DAMAGED as error:
        raise DataError(f"{path} cannot be read: {error}; download it again.") from error
    queries = [ids[0] for ids in lines for _ in ids[1:]]
    candidates = [candidate for ids in lines for candidate in ids[1:]]
    if not queries:
        raise DataError(f"{path} has no pairs; a line must have a query and its candidates.")
    columns = {"query": queries, "candidate": candidates}
    table = MemoryTable(pa.table(columns, pa.schema(dict.fromkeys(SIDES, pa.string()))), str(path))
    table.texts = frozenset(SIDES)
    return table


# Tables with an id column, from one or several files: features, weights, vectors, texts.


def keyed_table(
    tables: Sequence[Table],
    separator: str = "|",
    columns: Sequence[str] | None = None,
    bad_rows: BadRows | None = None,
    ids: Sequence[str] = (ID,),
) -> pa.Table:
    """Return the rows of one or several tables that have the same columns, one with ids.

    A column of text files gets the narrowest type that fits its cells in all files: int64 for
    canonical integers, float64 if there is a decimal point, lists of strings if any cell has the
    separator, else string. The types of other files are promoted by Arrow's rules.

    Args:
        tables: at least one.
        separator: separates the keys of a bag in a text file; "" for no lists.
        columns: the columns to read besides the id; None reads all.
        bad_rows: how to treat rows without an id.
        ids: names of the id column to try, in order; the result has `id`, int64 or string.
    Raises: DataError: a table is damaged or lacks a column that another has, types do not fit
        together, or a row has no id.
    """
    key = next((n for n in ids if n in tables[0].names), ids[0])
    names = [n for n in (tables[0].names if columns is None else columns) if n not in (key, ID)]
    for table in tables:
        refuse_unknown(table.name, [key, *names], table.names)
        extra = [n for n in table.names if columns is None and n not in tables[0].names]
        if extra:
            both = f"{table.name} has a column {extra[0]!r} and {tables[0].name} does not"
            raise DataError(f"{both}; give all files the same columns.")
        refuse_non_ids(table.types[key], key, table.name)
    schemas = [pa.schema([(n, t.types[n]) for n in (key, *names)]) for t in tables]
    contents = [
        pa.Table.from_batches(list(table.batches(schema.names)), schema)
        for table, schema in zip(tables, schemas, strict=True)
    ]
    text_types = {
        name: _type_of_texts(
            [c[name] for table, c in zip(tables, contents, strict=True) if name in table.texts],
            "" if name == key else separator,
        )
        for name in (key, *names)
    }
    bad_rows, results = bad_rows or BadRows(), []
    for table, content in zip(tables, contents, strict=True):
        cells = decoded(content[key])
        values, faults = ids_of_cells(cells, text_file=key in table.texts)
        good = bad_rows.good_rows(SourceRows(table.name), {key: (cells, faults)}, len(cells))
        if key in table.texts and text_types[key] != pa.int64():
            values = values.cast(pa.string())
        typed = {ID: values}
        for name in names:
            typed[name] = cells = decoded(content[name])
            if name in table.texts:
                bags = pc.split_pattern(cells, separator) if text_types[name] == BAG else cells
                typed[name] = bags.cast(text_types[name])
        results.append(pa.table(typed).filter(good))
    bad_rows.finish()
    if any(is_text(result[ID].type) for result in results):
        results = [r.set_column(0, ID, r[ID].cast(pa.string())) for r in results]
    try:
        return pa.concat_tables(results, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"{', '.join(table.name for table in tables)} have incompatible types in a column: "
            f"{clause_of(error)}; write the column with one type."
        ) from error


def _type_of_texts(columns: Sequence[pa.ChunkedArray], separator: str) -> pa.DataType:
    """Return the type of a column of text files."""
    cells = pa.chunked_array([c for column in columns for c in column.chunks], pa.string())
    if separator and pc.any(pc.match_substring(cells, separator)).as_py():
        return BAG
    if cells.null_count == len(cells):
        return pa.string()
    if all_match(cells, INTEGER):
        try:
            return cells.cast(pa.int64()).type
        except pa.ArrowInvalid:  # larger than int64
            return pa.string()
    decimal = pc.any(pc.match_substring(cells, ".")).as_py()
    return pa.float64() if decimal and all_match(cells, FLOAT_CELL) else pa.string()


def read_keyed_files(path: Paths, *args: Any, **options: Any) -> pa.Table:
    """Return `keyed_table` of files; the other arguments are the same."""
    return keyed_table([TableStream(file) for file in source_files(path)], *args, **options)


def read_texts(
    path: Path, *, id_column: str = "id", text_column: str = "text"
) -> tuple[pa.Array, list[str]]:
    """Read ids, int64 or string, and texts from a table or a JSON Lines file, in file order."""
    if not path.is_file():
        raise DataError(f"There is no file {path}; correct the path.")
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        refuse_other_content(path)
        # Arrow's reader would parse texts such as 2024-05-31 as times, and fail on other keys.
        table: Table = MemoryTable(_json_lines(path, id_column, text_column), str(path))
    else:
        stream = TableStream(source_files(path)[0])
        stream.has_lines_in_cells = True
        table = stream
    refuse_unknown(f"{path} (--column changes names)", (id_column, text_column), table.names)
    refuse_non_ids(table.types[id_column], id_column, str(path))
    schema = pa.schema({name: table.types[name] for name in (id_column, text_column)})
    rows = pa.Table.from_batches(list(table.batches(schema.names)), schema)
    if not len(rows):
        raise DataError(f"{path} has no rows; it needs at least one.")
    cells, texts = (decoded(rows[name]) for name in schema.names)
    if not is_text(texts.type):
        raise DataError(f"{path}: {text_column} has the type {texts.type}; it must be text.")
    ids, faults = ids_of_cells(cells, text_file=id_column in table.texts)
    bad_rows, columns = BadRows(advice=False), {id_column: (cells, faults)}
    columns[text_column] = texts, [(is_blank(texts), "a text")]
    bad_rows.good_rows(SourceRows(str(path)), columns, len(rows))
    bad_rows.finish()
    refuse_repeats(ids, str(path))
    return ids, texts.to_pylist()


def _json_lines(path: Path, *names: str) -> pa.Table:
    """Read these keys of a JSON Lines file."""
    records = list[list[Any]]()
    with path.open("rb") as file:
        for row, line in enumerate(file, 1):
            try:
                if line.strip():
                    record = json.loads(line)
                    records.append([record[name] for name in names])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise DataError(
                    f"{path} row {row} is not a JSON object with {' and '.join(map(repr, names))} "
                    "(--column changes names); correct or remove it."
                ) from error
    try:
        columns = [pa.array([record[i] for record in records]) for i in range(len(names))]
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise DataError(
            f"{path}: {' and '.join(names)} must each be all integers or all UTF-8 texts; correct "
            "the file."
        ) from error
    return pa.table(columns, names=list(names))


def read_features(
    query_features: Paths | None,
    candidate_features: Paths | None,
    columns: Mapping[str, str],
    bad_rows: BadRowsChoice,
) -> dict[SideName, pa.Table]:
    """Read the files of features of each side that has some."""
    paths: dict[SideName, Paths | None] = {"query": query_features, "candidate": candidate_features}
    return {
        side: read_keyed_files(files, bad_rows=BadRows(bad_rows), ids=names_of_ids(columns, side))
        for side, files in paths.items()
        if files is not None
    }


def names_of_ids(columns: Mapping[str, str], side: str) -> list[str]:
    """Return possible names of the id column of a table of features, the likeliest first."""
    chosen = columns.get(f"{side}_id")
    return ["id", columns.get(side, side)] if chosen is None else [chosen]


def rows_by_id(ids: pa.ChunkedArray, keys: pa.Array, source: str) -> pa.Array:
    """Return the row of each key among a table's distinct ids, int32; null for a missing key."""
    problem = f"{source} have none of the ids of the interactions"
    if pa.types.is_string(ids.type) and pa.types.is_integer(keys.type) and len(ids):
        raise DataError(
            f"{problem}: they have text, such as {ids[0].as_py()!r}, and the interactions have "
            f"integers, such as {keys[0]}; are they for the other side? If not, use one type."
        )
    refuse_other_form(ids, keys, source, "the interactions")
    rows = pc.index_in(keys, value_set=ids.cast(keys.type))
    if len(ids) and rows.null_count == len(rows):
        examples = f"(for example, {ids[0]} there and {keys[0]} in the interactions)"
        raise DataError(f"{problem} {examples}; are they for the other side?")
    return rows


# Tables in memory. The module of an object's class tells its library, without importing it.


def interactions_of(
    data: Any,
    names: Mapping[str, str],
) -> InteractionSource:
    """Return the interactions of any input of `Corpus.of`; `names` has column names by role."""
    if _library(data) == "scipy":
        return source_of(MemoryTable(_from_sparse(data), "The matrix"), {})
    is_list = isinstance(data, (list, tuple)) and len(data) > 0
    # Named tuples are read as mappings below.
    if is_list and isinstance(data[0], (tuple, list)) and not hasattr(data[0], "_asdict"):
        return source_of(MemoryTable(table_of(_from_tuples(data), "The list"), "The list"), {})
    source = f"The {type(data).__name__}"
    table = table_of(data, source)
    return source_of(MemoryTable(table, source), names)


def table_of(data: Any, source: str) -> pa.Table:
    """Convert a frame, a mapping of columns or a list of mappings to an Arrow table."""
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
                f"{source} cannot be read as columns: {clause_of(error)}; give each column "
                "values of one type."
            ) from error
    if table is None:
        raise DataError(f"A {type(data).__name__} is not a supported table; give {KINDS}.")
    refuse_repeated_names(table.column_names, source)
    return table


def _arrow_table(data: Any) -> pa.Table | None:
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if _library(data) == "pandas":
        return pa.table({str(name): _column(data[name], str(name)) for name in data.columns})
    if _library(data) == "polars":
        return _from_polars(data.collect() if hasattr(data, "collect") else data)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if isinstance(data, Mapping):
        return pa.table({str(name): _column(values, str(name)) for name, values in data.items()})
    if isinstance(data, Sequence) and all(hasattr(row, "_asdict") for row in data):
        data = [row._asdict() for row in data]
    if isinstance(data, Sequence) and data and all(isinstance(row, Mapping) for row in data):
        names = list(dict.fromkeys(str(name) for row in data for name in row))
        return pa.table({n: _column([row.get(n) for row in data], n) for n in names})
    return None


def _from_polars(data: Any) -> Any:
    """Convert a frame or series to Arrow without string views, which few functions support."""
    return data.to_arrow(compat_level=sys.modules["polars"].CompatLevel.oldest())


def _from_tuples(data: Sequence[Any]) -> dict[str, Any]:
    length = len(data[0])
    for row, values in enumerate(data, 1):
        if not isinstance(values, (tuple, list)) or len(values) != length:
            raise DataError(
                f"The list row {row} is {values!r}; it must be a tuple of {length} values like "
                "row 1."
            )
    if not 2 <= length <= len(TUPLE):
        raise DataError(
            f"The list has tuples of {length} values; they must be ({', '.join(TUPLE[:2])}), "
            f"({', '.join(TUPLE[:3])}) or ({', '.join(TUPLE)})."
        )
    columns = list(zip(*data, strict=True))
    return dict(zip(TUPLE, columns, strict=False))


def _from_sparse(matrix: Any) -> pa.Table:
    entries = matrix.tocoo()
    nonzero = entries.data != 0
    columns = {
        side: index[nonzero].astype(np.int64)
        for side, index in zip(SIDES, (entries.row, entries.col), strict=True)
    }
    weight = entries.data[nonzero].astype(np.float64)
    return pa.table(columns | ({} if (weight == 1).all() else {"weight": weight}))


def _column(values: Any, name: str) -> pa.Array:
    """Convert a column to Arrow. Raises: DataError: the values have several types."""
    if _library(values) == "polars":
        return _from_polars(values)
    # pandas' older types have NaN for missing cells; convert them to null.
    of_pandas = _library(values) == "pandas"
    if of_pandas and values.dtype.kind != "O":
        return pa.array(values, from_pandas=True)
    if not of_pandas and any(hasattr(values, f"__arrow_c_{m}__") for m in ("array", "stream")):
        return decoded(pa.chunked_array(values))
    if isinstance(values, np.ndarray) and values.dtype != object:
        return pa.array(values)
    cells = list(values)
    # Convert mixed dates to text: Arrow would take times without a zone for UTC, and drop the times
    # of a column that begins with a date.
    dates = [cell for cell in cells if isinstance(cell, date) and cell == cell]
    if len({(isinstance(d, datetime), getattr(d, "tzinfo", None) is not None) for d in dates}) > 1:
        cells = [cell.isoformat() if isinstance(cell, date) else cell for cell in cells]
    try:
        return pa.array(cells, from_pandas=of_pandas)
    except (pa.ArrowException, OverflowError) as error:
        why = f"{clause_of(error)}; give it values of one type"
        raise DataError(f"column {name!r}: {why}.") from error


def _library(data: Any) -> str:
    return type(data).__module__.partition(".")[0]
