"""`InteractionSources`: interactions of files or of memory that are read together by one set of
rules, so that the result depends neither on how the rows are divided into files nor on their order:

- Ids are int64 if all are integers, else texts. In a file of text, an integer is what is written as
  the integer is printed.
- Values and weights are float32.
- Times are dates or numbers, all of them written in one way: numbers in one unit, dates with a zone
  or dates without one. They become int64 (dates in microseconds), or float64 if one has decimals.
- A row with a missing id, or with a number or time that is none, is a bad row.

Rows under an id, such as features, are read by the same rules: `keyed_table`.
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
    lacking,
    refuse_repeated_names,
    refuse_unknown,
    source_files,
    unpacked,
)
from evergram.data.rolling_window import UNITS, unit_range
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
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
# The columns of tuples, in their order.
TUPLE = ("query", "candidate", "weight", "time")
KINDS = (
    "a DataFrame of pandas or Polars, an Arrow table, a SciPy sparse matrix, a mapping of names to "
    "columns, or a list of tuples (query, candidate) or of mappings"
)
# What is done with bad rows.
BadRowsChoice: TypeAlias = Literal["refuse", "drop"]
HOW_TO_DROP = "bad_rows = 'drop' (--drop-bad-rows), in a recipe under [data]"
# Cells of numbers and dates in a text.
FLOAT_CELL = rf"{NUMBER}|^[+-]?(?i:nan|inf|infinity)$"
_DATE = r"^\d{4}-\d\d-\d\d([T ]\d\d(:?\d\d(:?\d\d(\.\d{1,9})?)?)?)?"
ZONED, NAIVE, NUMBERS = "dates with a time zone", "dates without a time zone", "numbers"
_FORMS = {NUMBERS: NUMBER, NAIVE: rf"{_DATE}$", ZONED: rf"{_DATE}(Z|[+-]\d\d(:?\d\d)?)$"}
TIMES = (
    "write all times in one way: as Unix times in one unit, or in ISO 8601, as 2024-05-31, "
    "2024-05-31T12:00:00 (all without a zone) or 2024-05-31T12:00:00Z (all with one)"
)
A_TIME = "a number or a date in ISO 8601, as 2024-05-31 or 2024-05-31T12:00:00Z"
# In a unit of Arrow's times; a nanosecond is less than one.
_MICROSECONDS = {"D": 86_400_000_000, "s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
BAG = pa.list_(pa.string())
ID = "id"
# Marks bad cells, and says what they must be.
Fault: TypeAlias = tuple[pa.Array, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Consecutive rows of a source, after `first_row` others, its own names of the columns by role,
    and the roles whose cells come from a file of text."""

    source: str
    first_row: int = 0
    names: Mapping[str, str] = field(default_factory=dict)
    texts: frozenset[str] = frozenset()

    def cell(self, row: int, role: str, cells: pa.Array) -> str:
        """Return a clause that says where a cell is, and what is in it."""
        cell = cells[row]
        try:
            shown = repr(cell.as_py()) if is_text(cells.type) else str(cell.as_py())
        except (OverflowError, ValueError):  # a date that Python does not have
            shown = str(cell.cast(pa.int64()).as_py())
        shown = "empty" if is_blank(cells.slice(row, 1))[0].as_py() else shown
        row += self.first_row + 1
        return f"{self.source} row {row}: {self.names.get(role, role)} is {shown}"


@dataclass
class BadRows:
    """The rows that cannot be used, counted by column and reason.

    Args:
        choice: "drop" leaves them out; "refuse" raises an error once all rows were read.
        advice: whether the error says how to drop them.
    Attributes:
        count: bad rows so far.
        reasons: by column and reason, the number of rows, and a sentence about the first.
    """

    choice: BadRowsChoice = "refuse"
    advice: bool = True
    count: int = 0
    reasons: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    def good_rows(
        self, place: Place, columns: Mapping[str, tuple[pa.Array, Iterable[Fault]]], size: int
    ) -> pa.Array:
        """Count the bad rows of a batch, whose cells and faults are given by role, and return bool
        [n], True for the others."""
        good = pa.array(np.ones(size, bool))
        for role, (cells, faults) in columns.items():
            for bad, wanted in faults:
                row = pc.index(bad, True).as_py()
                if row >= 0:
                    key = place.names.get(role, role), wanted
                    sentence = f"{place.cell(row, role, cells)}; it must be {wanted}"
                    count, first = self.reasons.get(key, (0, sentence))
                    self.reasons[key] = count + bad.true_count, first
                    good = pc.and_not(good, bad)
        self.count += size - good.true_count
        return good

    def finish(self) -> None:
        """Raise a DataError if there are bad rows that are not to be dropped, else warn of them."""
        if self.count and self.choice != "drop":
            them = "it" if self.count == 1 else "them"
            how = f"; or leave {them} out by {HOW_TO_DROP}" if self.advice else ""
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
        rows = f"{self.count:,} rows cannot be used. " if several else ""
        return rows + ". ".join(self.sentences())


class ReadAgainError(Exception):
    """A cell showed that a column has a wider type than was assumed so far; everything is read
    again so."""


@dataclass(frozen=True)
class InteractionSource:
    """Interactions that can be read more than once: a table, and by role (query, candidate, perhaps
    value, time, weight) its own name of the column."""

    table: Table
    names: Mapping[str, str]

    @property
    def unread(self) -> list[str]:
        return [name for name in self.table.names if name not in self.names.values()]


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
    # How times are written so far, each with the first one.
    _forms: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        first = self.sources[0]
        for source in self.sources[1:]:
            for one, other in ((first, source), (source, first)):
                lacks = [role for role in ROLES if role in one.names and role not in other.names]
                if lacks:
                    raise DataError(
                        f"{one.table.name} has a column {one.names[lacks[0]]!r} and "
                        f"{other.table.name} has none; give all sources this column, or name "
                        f"another as {lacks[0]} in neither."
                    )
        # The narrowest types; a row may widen them.
        narrow = dict.fromkeys([*SIDES, "time"], pa.int64())
        self.types = {r: narrow.get(r, pa.float32()) for r in ROLES if r in first.names}

    def table(self) -> pa.Table:
        """Return all of them, see `read`."""
        return self.read(lambda schema, batches: pa.Table.from_batches(batches, schema))

    def read(self, take: Callable[[pa.Schema, Iterator[pa.RecordBatch]], T]) -> T:
        """Return what a function makes of their schema and batches; it is called again where a type
        proves to be too narrow."""
        while True:
            if self.shared_ids and pa.string() in (self.types["query"], self.types["candidate"]):
                self.types |= dict.fromkeys(SIDES, pa.string())
            with suppress(ReadAgainError):  # `types` tells what is read otherwise
                return take(pa.schema(list(self.types.items())), self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        kept, weighs = 0, False
        self.bad_rows.count = 0
        for noted in (self.bad_rows.reasons, self._forms):
            noted.clear()
        for source in self.sources:
            texts = frozenset(r for r, name in source.names.items() if name in source.table.texts)
            row = 0
            # Two roles may share a column, as value and weight.
            for batch in source.table.batches(list(dict.fromkeys(source.names.values()))):
                if not batch.num_rows:
                    continue
                table = pa.table({role: batch[name] for role, name in source.names.items()})
                table = self._checked(table, Place(source.table.name, row, source.names, texts))
                row += batch.num_rows
                kept += table.num_rows
                self.rows = kept + self.bad_rows.count
                if "weight" in self.types and table.num_rows:
                    weighs |= pc.max(table["weight"]).as_py() > 0
                yield from table.to_batches()
        self.bad_rows.finish()
        name = self.sources[0].table.name
        if not kept:
            if self.bad_rows.count:
                raise DataError(f"{name} has no row that can be used. {self.bad_rows}.")
            raise DataError(f"{name} has no rows; at least one interaction is needed.")
        if "weight" in self.types and not weighs:
            raise DataError(
                f"{name}: the weight of every row is 0, so nothing would be learned; give weights "
                "above 0, or leave the column out."
            )

    def _checked(self, table: pa.Table, place: Place) -> pa.Table:
        """Return a batch, whose columns are named by role, without its bad rows and in `types`;
        widen a type that is too narrow."""
        cells = {role: decoded(table[role]) for role in self.types}
        columns: dict[str, pa.Array] = {}
        faults: dict[str, tuple[pa.Array, list[Fault]]] = {}
        for role, own in cells.items():
            name = place.names[role]
            if role in SIDES:
                refuse_non_ids(own.type, name, place.source, own[0].as_py())
                columns[role], found = ids_of_cells(own, text_file=role in place.texts)
            elif role == "time":
                times = comparable(own, name, place.source, dates=True)
                columns[role], found, forms = _times(times)
                self._refuse_other_forms(forms, place, own)
            else:
                numbers = comparable(own, name, place.source)
                columns[role], found = float_cells(numbers, pa.float32(), positive=role == "weight")
            faults[role] = own, found
        good = self.bad_rows.good_rows(place, faults, table.num_rows)
        read = pa.table(columns)
        read = read if good.true_count == len(good) else read.filter(good)
        for role, kind in self.types.items():
            own = read[role].type
            if pa.types.is_integer(kind) and not pa.types.is_integer(own) and len(read):
                self.types[role] = pa.string() if is_text(own) else pa.float64()
                raise ReadAgainError
        return read.cast(pa.schema(list(self.types.items())), safe=False)

    def _refuse_other_forms(
        self, forms: Mapping[str, pa.Array], place: Place, cells: pa.Array
    ) -> None:
        """Raise a DataError if times have another form than those before."""
        for form, mask in forms.items():
            row = pc.index(mask, True).as_py()
            if row >= 0:
                self._forms.setdefault(form, place.cell(row, "time", cells))
        # A small number, as of a counter or of before 1980, does not tell its unit.
        has_dates = any(not form.startswith(NUMBERS) for form in self._forms)
        told = [form for form in self._forms if has_dates or form != NUMBERS]
        if len(told) > 1:
            both = " and ".join(f"{form} ({self._forms[form]})" for form in told[:2])
            raise DataError(f"Times are {both}; {TIMES}.")


def decoded(cells: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without a dictionary, and texts of any kind as strings."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    cells = cells.cast(pa.string()) if is_text(cells.type) else cells
    return cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells


def refuse_non_ids(kind: pa.DataType, name: str, source: str, example: object = None) -> None:
    """Raise a DataError if a type holds neither integers nor strings, nor nulls alone."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or is_text(kind) or pa.types.is_null(kind)):
        one = "" if example is None else f" (the first is {example})"
        raise DataError(
            f"{source} column {name!r} is {kind}{one}; ids must be integers or strings."
        )


def ids_of_cells(cells: pa.Array, *, text_file: bool) -> tuple[pa.Array, list[Fault]]:
    """Return integers, strings or nulls as int64 or string, and the bad cells, which are null; in a
    file of text, integers are what is written so, and words such as NULL stand for nothing."""
    missing, blank = missing_cells(cells, text_file=text_file), is_blank(cells)
    faults: list[Fault] = []
    if text_file:
        broken = _true(pc.match_substring_regex(cells, BROKEN))
        close = "close the quotation mark before it, or write the table as Parquet"
        faults.append((broken, f"an id, without a line feed or a NUL byte; {close}"))
        missing = pc.and_not(missing, broken)
        # Integers as pandas writes them where one is missing; others would be other ids.
        whole = _true(pc.match_substring_regex(cells, r"^-?\d+\.0+$"))
        if pc.all(pc.or_(whole, missing)).as_py():
            faults.append((whole, "an integer without decimals"))
    words = "; in a file of text this word means a missing value" if text_file else ""
    faults += [(pc.and_(missing, blank), "an id"), (pc.and_not(missing, blank), f"an id{words}")]
    values = _without(cells, faults)
    if not is_text(values.type):
        try:
            return values.cast(pa.int64()), faults
        except pa.ArrowInvalid:  # beyond 64 bits with a sign
            return values.cast(pa.string()), faults
    if text_file and all_match(values, INTEGER):
        with suppress(pa.ArrowInvalid):
            return values.cast(pa.int64()), faults
    return values, faults


def float_cells(
    cells: pa.Array, kind: pa.DataType, *, positive: bool
) -> tuple[pa.Array, list[Fault]]:
    """Return numbers, or texts that are numbers, as floats, and the bad cells, which are null."""
    faults: list[Fault] = []
    if is_text(cells.type):
        cells = numbers(cells)
        faults.append((pc.is_null(cells), "a number"))
    # Unsafe, as float32 may round a large count.
    values = cells.cast(kind, safe=False)
    infinite = _not_finite(values)
    if faults:
        infinite = pc.and_not(infinite, faults[0][0])
    faults.append((infinite, f"a finite number of {kind.bit_width} bits"))
    if positive:
        faults.append((_true(pc.less(values, 0)), "a finite number of at least 0"))
    return _without(values, faults), faults


def comparable(cells: pa.Array, name: str, source: str, *, dates: bool = False) -> pa.Array:
    """Return numbers, dates, or texts that may be them, as Arrow compares them."""
    kind = cells.type
    if is_text(kind):
        return pc.utf8_trim_whitespace(cells)
    if pa.types.is_decimal(kind) or pa.types.is_null(kind) or pa.types.is_float16(kind):
        return cells.cast(pa.float64())
    if is_number(kind) or (dates and is_date(kind)):
        return cells
    wanted = A_TIME if dates else "a number"
    raise DataError(f"{source} column {name!r} is {kind}; it must be {wanted}.")


def _times(cells: pa.Array) -> tuple[pa.Array, list[Fault], dict[str, pa.Array]]:
    """Return times as int64 or float64, dates in microseconds; the bad cells, which are null; and
    which cells have which form."""
    if is_text(cells.type):
        masks = {f: _true(pc.match_substring_regex(cells, p)) for f, p in _FORMS.items()}
        forms = [form for form, mask in masks.items() if mask.true_count]
        if len(forms) > 1:  # an error, whatever the values are
            return pa.nulls(len(cells), pa.int64()), [], {form: masks[form] for form in forms}
        form = forms[0] if forms else NUMBERS
        texts = pc.if_else(masks[form], cells, None)
        if form == NUMBERS:
            texts = pc.utf8_ltrim(texts, "+")
            try:
                cells = texts.cast(pa.int64())
            except pa.ArrowInvalid:
                cells = texts.cast(pa.float64())
        else:
            cells = moments_of(texts, "UTC" if form == ZONED else None)
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
    lacking = _not_finite(numbers)
    beyond = pc.or_(pc.greater_equal(numbers, limit), pc.less_equal(numbers, -limit))
    faults = [
        (lacking, A_TIME),
        (
            pc.and_not(_true(beyond), lacking),
            "a time: it does not fit into 64 bits, or stands for a missing one",
        ),
    ]
    values = _without(numbers, faults)
    if is_date(kind):
        zone = kind.tz if pa.types.is_timestamp(kind) else None
        values = _without(cells, faults).cast(pa.timestamp("us", zone), safe=False)
        form = NAIVE if zone is None else ZONED
        return values.cast(pa.int64()), faults, {form: pc.is_valid(values)}
    by_unit, rest = {}, pc.is_valid(values)
    one = 1.0 if pa.types.is_floating(values.type) else 1
    for unit in UNITS:
        low, high = (pa.scalar(end * one) for end in unit_range(unit))
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


def numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts as float64; null where one is not a number."""
    plain = pc.utf8_trim_whitespace(texts)
    plain = pc.if_else(pc.match_substring_regex(plain, FLOAT_CELL), plain, None)
    return pc.utf8_ltrim(plain, "+").cast(pa.float64())


def moments_of(texts: pa.Array, zone: str | None) -> pa.Array:
    """Return dates in ISO 8601 as timestamps; null where one is none, as of a 13th month."""
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
    """Return which cells are null or an empty text."""
    blank = pc.is_null(cells)
    if is_text(cells.type):
        blank = pc.or_(blank, _true(pc.equal(pc.utf8_trim_whitespace(cells), "")))
    return blank


def _not_finite(numbers: pa.Array) -> pa.Array:
    if pa.types.is_floating(numbers.type):
        return pc.invert(_true(pc.is_finite(numbers)))
    return pc.is_null(numbers)


def _without(cells: pa.Array, faults: Iterable[Fault]) -> pa.Array:
    """Return the cells with nulls in place of bad ones."""
    for bad, _ in faults:
        if bad.true_count:
            cells = pc.if_else(bad, pa.scalar(None, cells.type), cells)
    return cells


def _true(mask: pa.Array) -> pa.Array:
    """Return a mask with False in place of nulls."""
    return pc.fill_null(mask, False)


def sources_of_files(paths: Paths, columns: Mapping[str, str]) -> list[InteractionSource]:
    """Return the interactions of files, whose own names of the roles are `columns`."""
    check_roles(columns)
    made = []
    for file in source_files(paths):
        source = source_of(TableStream(file), columns)
        for name, sign, _ in (part.partition("=") for part in Path(file.path).parts[:-1]):
            if sign and name in ROLES and name not in source.names:
                raise DataError(
                    f"{file.name}: the name of the folder {name}=… is not read as a column; write "
                    f"{name} into the files."
                )
        made.append(source)
    return made


def source_of(table: Table, columns: Mapping[str, str]) -> InteractionSource:
    """Return the interactions of a table; roles that `columns` does not name are columns of the
    same name, if there are any."""
    has = table.names
    columns = {role: name for role, name in columns.items() if role in ROLES}
    refuse_unknown(table.name, columns.values(), has)
    names = {role: role for role in ROLES} | columns
    absent = [side for side in SIDES if names[side] not in has]
    if absent:
        raise DataError(lacking(table, absent, columns, has))
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


def adjacency_list(path: Path) -> Table:
    """Return the pairs of lines `query candidate candidate …`, of the UTF-8 file `path`, perhaps
    `.gz`, as of the public splits of LightGCN and NGCF; a query may have several lines, or none."""
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


# Rows under an id, of one or several files or tables: features, weights, vectors, texts.


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


def read_keyed_files(path: Paths, *args: Any, **options: Any) -> pa.Table:
    """Return `keyed_table` of files, which has the same arguments otherwise."""
    return keyed_table([TableStream(file) for file in source_files(path)], *args, **options)


def read_texts(
    path: Path, *, id_column: str = "id", text_column: str = "text"
) -> tuple[pa.Array, list[str]]:
    """Return the ids, int64 or string, and the texts of a file, in its order: a table, or JSON
    lines. Errors name rows."""
    if not path.is_file():
        raise DataError(f"There is no file {path}; correct the path.")
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        refuse_other_content(path)
        # Arrow's reader takes texts such as 2024-05-31 for times, and fails by other keys' types.
        table: Table = MemoryTable(_json_lines(path, id_column, text_column), str(path))
    else:
        stream = TableStream(source_files(path)[0])
        stream.has_lines_in_cells = True
        table = stream
    refuse_unknown(f"{path} (--column names others)", (id_column, text_column), table.names)
    refuse_non_ids(table.types[id_column], id_column, str(path))
    schema = pa.schema({name: table.types[name] for name in (id_column, text_column)})
    rows = pa.Table.from_batches(list(table.batches(schema.names)), schema)
    if not len(rows):
        raise DataError(f"{path} has no rows; it needs at least one.")
    cells, texts = (decoded(rows[name]) for name in schema.names)
    if not is_text(texts.type):
        raise DataError(f"{path}: {text_column} is of type {texts.type}; it must be text.")
    ids, faults = ids_of_cells(cells, text_file=id_column in table.texts)
    bad_rows, columns = BadRows(advice=False), {id_column: (cells, faults)}
    columns[text_column] = texts, [(is_blank(texts), "a text")]
    bad_rows.good_rows(Place(str(path)), columns, len(rows))
    bad_rows.finish()
    refuse_repeats(ids, str(path))
    return ids, texts.to_pylist()


def _json_lines(path: Path, *names: str) -> pa.Table:
    """Return these keys of a file whose lines are JSON objects."""
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
                    "(--column names others); correct or remove it."
                ) from error
    try:
        columns = [pa.array([record[i] for record in records]) for i in range(len(names))]
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise DataError(
            f"{path}: {' and '.join(names)} must be all integers or all texts in UTF-8; write each "
            "in one way."
        ) from error
    return pa.table(columns, names=list(names))


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
    # A named tuple says which column is which.
    if is_list and isinstance(data[0], (tuple, list)) and not hasattr(data[0], "_asdict"):
        return source_of(MemoryTable(table_of(_from_tuples(data), "The list"), "The list"), {})
    source = f"The {type(data).__name__}"
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
        raise DataError(f"A {type(data).__name__} is no table of interactions; give {KINDS}.")
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
    columns = {
        side: place[stored].astype(np.int64)
        for side, place in zip(SIDES, (entries.row, entries.col), strict=True)
    }
    weight = entries.data[stored].astype(np.float64)
    return pa.table(columns | ({} if (weight == 1).all() else {"weight": weight}))


def _column(values: Any, name: str) -> pa.Array:
    """Return an Arrow array. Raises: DataError: the values have several types."""
    if _library(values) == "polars":
        return _from_polars(values)
    # A missing cell of pandas' older types is NaN; as a null it is refused as in a file.
    of_pandas = _library(values) == "pandas"
    if of_pandas and values.dtype.kind != "O":
        return pa.array(values, from_pandas=True)
    if not of_pandas and any(hasattr(values, f"__arrow_c_{m}__") for m in ("array", "stream")):
        return decoded(pa.chunked_array(values))
    if isinstance(values, np.ndarray) and values.dtype != object:
        return pa.array(values)
    cells = list(values)
    # Arrow takes a time without a zone for one in UTC, and drops the time of a column that begins
    # with a date, so dates of several kinds are given as texts.
    dates = [cell for cell in cells if isinstance(cell, date) and cell == cell]
    if len({(isinstance(d, datetime), getattr(d, "tzinfo", None) is not None) for d in dates}) > 1:
        cells = [cell.isoformat() if isinstance(cell, date) else cell for cell in cells]
    try:
        return pa.array(cells, from_pandas=of_pandas)
    except (pa.ArrowException, OverflowError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise DataError(f"column {name!r}: {why}; give it values of one type.") from error


def _library(data: Any) -> str:
    return type(data).__module__.partition(".")[0]
