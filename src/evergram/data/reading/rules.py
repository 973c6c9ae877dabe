"""The rules for columns of interactions: types, units, zones, and cells that cannot be used.

Every source of interactions, in files or in memory, is read by them. All batches of all sources
that are read together share one `Rules`, so that the result depends neither on how the rows are
divided into files nor on the order of the files:

- Ids are int64 if all are integers, else texts. In a file of text and in the name of a folder
  (`user=0017`), an integer is what is written as the integer is printed.
- Values and weights are float32.
- Times are dates or numbers, all of them written in one way: numbers in one unit, dates with a zone
  or dates without one. They become int64 (dates in microseconds), or float64 if one has decimals.
- A row with a missing id, or with a number or time that is none, is a bad row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.rolling_window import UNITS, unit_of, unit_range
from evergram.errors import DataError
from evergram.ids import BROKEN, INTEGER, is_text, missing_cells

FLOAT32 = pa.float32()
ROLES = ("query", "candidate", "value", "time", "weight")
SideName: TypeAlias = Literal["query", "candidate"]
SIDES: tuple[SideName, SideName] = ("query", "candidate")
# What is done with bad rows.
BadRowsChoice: TypeAlias = Literal["refuse", "drop"]
HOW_TO_DROP = "bad_rows = 'drop' (--drop-bad-rows), in a recipe under [data]"
# Cells of numbers and dates in a text.
FLOAT_CELL = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:nan|inf|infinity)$"
_DATE = r"^\d{4}-\d\d-\d\d([T ]\d\d(:?\d\d(:?\d\d(\.\d{1,9})?)?)?)?"
_ZONE = r"(Z|[+-]\d\d(:?\d\d)?)"
ZONED, NAIVE, NUMBERS = "dates with a time zone", "dates without a time zone", "numbers"
TIMES = (
    "write all times in one way: as Unix times in one unit, or in ISO 8601, as 2024-05-31, "
    "2024-05-31T12:00:00 (all without a zone) or 2024-05-31T12:00:00Z (all with one)"
)
A_TIME = "a number or a date in ISO 8601, as 2024-05-31 or 2024-05-31T12:00:00Z"
_CLOSE = "close the quotation mark before it, or write the table as Parquet"
_WHOLE = r"^-?\d+\.0+$"  # integers as pandas writes them, where a cell of the column is missing
# In a unit of Arrow's times; a nanosecond is less than one.
_MICROSECONDS = {"D": 86_400_000_000, "s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


@dataclass(frozen=True)
class Place:
    """Where a batch of rows is.

    Args:
        source: name of the file or table.
        first_row: rows of the source before the batch.
        names: by role, the source's own name of the column.
        texts: roles whose cells come from a file of text or the name of a folder.
    """

    source: str
    first_row: int = 0
    names: Mapping[str, str] = field(default_factory=dict)
    texts: frozenset[str] = frozenset()

    def name(self, role: str) -> str:
        return self.names.get(role, role)

    def row(self, row: int) -> str:
        return f"{self.source} row {self.first_row + row + 1}"

    def cell(self, row: int, role: str, cells: pa.Array) -> str:
        return f"{self.row(row)}: {self.name(role)} is {_shown(cells[row])}"


# Marks bad cells, and says what they must be.
Fault: TypeAlias = tuple[pa.Array, str]


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
    reasons: dict[tuple[str, str, bool], tuple[int, str]] = field(default_factory=dict)

    def reset(self) -> None:
        self.count = 0
        self.reasons.clear()

    def good_rows(
        self, place: Place, columns: Mapping[str, tuple[pa.Array, Iterable[Fault]]], size: int
    ) -> pa.Array:
        """Count the bad rows of a batch, whose cells and faults are given by role, and return bool
        [n], True for the others."""
        good = pa.array(np.ones(size, bool))
        for role, (cells, faults) in columns.items():
            for bad, wanted in faults:
                if pc.any(bad).as_py():
                    self._note(place, role, cells, bad, wanted)
                    good = pc.and_not(good, bad)
        self.count += size - (pc.sum(good).as_py() or 0)
        return good

    def _note(self, place: Place, role: str, cells: pa.Array, bad: pa.Array, wanted: str) -> None:
        blank, name = _blank(cells), place.name(role)
        for empty in (True, False):
            mask = pc.and_(bad, blank if empty else pc.invert(blank))
            row = pc.index(mask, True).as_py()
            if row < 0:
                continue
            what = f"{place.row(row)}: {name} is empty" if empty else place.cell(row, role, cells)
            count, first = self.reasons.get(
                (name, wanted, empty), (0, f"{what}; it must be {wanted}")
            )
            self.reasons[name, wanted, empty] = count + pc.sum(mask).as_py(), first

    def finish(self) -> None:
        """Raise a DataError if there are bad rows that are not to be dropped."""
        if self.count and self.choice == "refuse":
            them = "it" if self.count == 1 else "them"
            how = f"; or leave {them} out by {HOW_TO_DROP}" if self.advice else ""
            raise DataError(f"{self}. Correct {them}{how}.")

    def warn(self) -> None:
        if self.count:
            logging.getLogger(__name__).warning("Bad rows were dropped: %s.", self)

    def sentences(self) -> list[str]:
        """Return a sentence for each column and reason, without a full stop."""
        return [
            sentence + (f" ({count:,} such rows)" if count > 1 else "")
            for count, sentence in self.reasons.values()
        ]

    def as_json(self) -> dict[str, Any]:
        return {"count": self.count, "reasons": self.sentences()}

    def __str__(self) -> str:
        """Return it in sentences, without the last full stop."""
        several = self.count > 1 and len(self.reasons) > 1
        rows = f"{self.count:,} rows cannot be used. " if several else ""
        return rows + ". ".join(self.sentences())


@dataclass
class Clock:
    """How times are written, `ZONED`, `NAIVE`, `NUMBERS`, or "numbers in seconds" and the like,
    which must be one way in all that is read together; "" before the first time, which is at
    `place`."""

    form: str = ""
    place: str = ""

    def see(self, form: str, place: str) -> None:
        """Raise a DataError if a time has another form than those before."""
        # A small number, as of a counter or of before 1980, does not tell its unit.
        if not self.form or (self.form == NUMBERS and form.startswith(NUMBERS)):
            self.form, self.place = form, place
        elif form != self.form and not (form == NUMBERS and self.form.startswith(NUMBERS)):
            raise DataError(
                f"Times are {self.form} at {self.place}, and {form} at {place}; {TIMES}."
            )


@dataclass(frozen=True)
class _Read:
    """A column as it was read: its values, with a null for each bad cell; the bad cells; and of
    times, which cells are of which form."""

    values: pa.Array
    faults: list[Fault]
    forms: dict[str, pa.Array] = field(default_factory=dict)


class ReadAgainError(Exception):
    """A cell showed that a column has a wider type than was assumed so far; everything is read
    again so."""


class Rules:
    """The rules for all batches of interactions that are read together.

    Args:
        bad_rows: counts rows that cannot be used.
        clock: how times are written so far.
    """

    def __init__(self, bad_rows: BadRows) -> None:
        self.bad_rows, self.clock = bad_rows, Clock()

    def checked(self, table: pa.Table, place: Place) -> pa.Table:
        """Return a batch, whose columns are named by role, without its bad rows: ids as int64 or
        string, `value` and `weight` as float32, and `time` as int64 or float64."""
        cells = {role: decoded(table[role]) for role in table.column_names}
        read = {role: _column(role, own, place) for role, own in cells.items()}
        columns = {role: (cells[role], one.faults) for role, one in read.items()}
        good = self.bad_rows.good_rows(place, columns, table.num_rows)
        for form, mask in read["time"].forms.items() if "time" in read else ():
            row = pc.index(pc.and_(mask, good), True).as_py()
            if row >= 0:
                cell = f"{place.name('time')} is {_shown(cells['time'][row])}"
                self.clock.see(form, f"{place.row(row)} ({cell})")
        checked = pa.table({role: one.values for role, one in read.items()})
        return checked if good.true_count == len(good) else checked.filter(good)


def decoded(cells: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without a dictionary, and texts of any kind as strings."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    cells = cells.cast(pa.string()) if is_text(cells.type) else cells
    return cells.combine_chunks()


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
    missing = missing_cells(cells, text_file=text_file)
    faults: list[Fault] = []
    if text_file:
        broken = _true(pc.match_substring_regex(cells, BROKEN))
        faults.append((broken, f"an id, without a line feed or a NUL byte; {_CLOSE}"))
        missing = pc.and_not(missing, broken)
        whole = _true(pc.match_substring_regex(cells, _WHOLE))
        if pc.all(pc.or_(whole, missing)).as_py():  # others would be other ids: 17.0 than 17
            faults.append((whole, "an integer without decimals"))
    words = "; in a file of text this word means a missing value" if text_file else ""
    blank = _blank(cells)
    faults += [(pc.and_(missing, blank), "an id"), (pc.and_not(missing, blank), f"an id{words}")]
    if pa.types.is_uint64(cells.type):
        faults.append((_from_2_63(cells), "below 2⁶³ to be an integer id, or be given as text"))
    values = _without(cells, faults)
    if pa.types.is_null(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.int64()), faults
    if text_file and all_match(values, INTEGER):
        try:
            return values.cast(pa.int64()), faults
        except pa.ArrowInvalid:  # beyond 64 bits
            pass
    return values, faults


def numbers_of_column(cells: pa.ChunkedArray, source: str, name: str) -> pa.Array:
    """Return a whole column of numbers of at least 0 as float64. Raises: DataError: one is none."""
    place, bad_rows = Place(source), BadRows(advice=False)
    own = _comparable(decoded(cells), name, place)
    values, faults = _numbers(own, pa.float64(), positive=True)
    bad_rows.good_rows(place, {name: (own, faults)}, len(own))
    bad_rows.finish()
    return values


def _column(role: str, cells: pa.Array, place: Place) -> _Read:
    """Return a column that is read by its role."""
    if role in SIDES:
        example = cells[0].as_py() if len(cells) else None
        refuse_non_ids(cells.type, place.name(role), place.source, example)
        return _Read(*ids_of_cells(cells, text_file=role in place.texts))
    if role == "time":
        return _times(_comparable(cells, place.name(role), place, dates=True), place)
    values, faults = _numbers(
        _comparable(cells, place.name(role), place), positive=role == "weight"
    )
    return _Read(values, faults)


def _comparable(cells: pa.Array, name: str, place: Place, *, dates: bool = False) -> pa.Array:
    """Return numbers, dates, or texts that may be them, as Arrow compares them."""
    kind = cells.type
    if is_text(kind):
        return pc.utf8_trim_whitespace(cells)
    if pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return cells.cast(pa.float64())
    if pa.types.is_float16(kind):
        return cells.cast(pa.float32())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or (dates and is_date(kind)):
        return cells
    wanted = A_TIME if dates else "a number"
    raise DataError(f"{place.source} column {name!r} is {kind}; it must be {wanted}.")


def is_date(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _numbers(
    cells: pa.Array, kind: pa.DataType = FLOAT32, *, positive: bool
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


def _times(cells: pa.Array, place: Place) -> _Read:
    given = pa.array(np.ones(len(cells), bool))
    if not is_text(cells.type):
        return _dates(cells, given) if is_date(cells.type) else _unix_times(cells, given)
    parts: list[_Read] = []
    are_numbers = _true(pc.match_substring_regex(cells, FLOAT_CELL))
    bad = pc.invert(are_numbers)
    if pc.any(are_numbers).as_py():
        texts = pc.utf8_ltrim(_where(cells, are_numbers), "+")
        try:
            unix = texts.cast(pa.int64())
        except pa.ArrowInvalid:
            unix = texts.cast(pa.float64())
            integers = texts.filter(pc.match_substring_regex(texts, INTEGER))
            try:
                integers.cast(pa.int64()).cast(pa.float64())
            except pa.ArrowInvalid:
                raise rounded(place.source) from None
        parts.append(_unix_times(unix, are_numbers))
    for pattern, zone in ((f"{_DATE}$", None), (f"{_DATE}{_ZONE}$", "UTC")):
        dates = _true(pc.match_substring_regex(cells, pattern))
        if pc.any(dates).as_py():
            moments, wrong = moments_of(_where(cells, dates), zone)
            bad = pc.and_not(bad, pc.and_not(dates, wrong))
            parts.append(_dates(moments, pc.and_not(dates, wrong)))
    faults = [(bad, A_TIME), *(fault for part in parts for fault in part.faults)]
    forms = {form: mask for part in parts for form, mask in part.forms.items()}
    values = [part.values for part in parts] or [pa.nulls(len(cells), pa.int64())]
    return _Read(pc.coalesce(*values), faults, forms)


def _dates(cells: pa.Array, given: pa.Array) -> _Read:
    """Return dates as microseconds: one integer unit for every clock, as only order and differences
    are used. The cells that are `given` are dates, of which some may be missing."""
    kind = cells.type
    unit = "D" if pa.types.is_date32(kind) else getattr(kind, "unit", "ms")
    days = cells.cast(pa.int32()) if unit == "D" else cells
    faults = _refused_times(days.cast(pa.int64()), (2**63 - 1) // _MICROSECONDS[unit], given)
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    values = _without(cells, faults).cast(pa.timestamp("us", zone), safe=False)
    return _Read(values.cast(pa.int64()), faults, {NAIVE if zone is None else ZONED: given})


def _unix_times(cells: pa.Array, given: pa.Array) -> _Read:
    """Return numbers as int64 or float64; their sizes tell their unit."""
    faults: list[Fault] = []
    if pa.types.is_uint64(cells.type):
        faults = [(_from_2_63(cells), "a time below 2⁶³")]
        cells, given = _without(cells, faults), pc.and_not(given, faults[0][0])
    number: type = float if pa.types.is_floating(cells.type) else int
    limit = 2.0**63 if number is float else 2**63 - 1
    cells = cells.cast(pa.float64() if number is float else pa.int64())
    faults += _refused_times(cells, limit, given)
    values = _without(cells, faults)
    ends = pc.min_max(values).as_py().values()
    units = {None if end is None else unit_of(end) for end in ends}
    if len(units) == 1 and None not in units:
        return _Read(values, faults, {f"{NUMBERS} in {units.pop()}": given})
    forms, rest = {}, pc.is_valid(values)
    for unit in UNITS:
        low, high = (number(end) for end in unit_range(unit))
        inside = _true(pc.and_(pc.greater_equal(values, low), pc.less(values, high)))
        forms[f"{NUMBERS} in {unit}"] = inside
        rest = pc.and_not(rest, inside)
    return _Read(values, faults, {**forms, NUMBERS: rest})


def _refused_times(numbers: pa.Array, limit: float, given: pa.Array) -> list[Fault]:
    """Return the times that are missing, that stand for no time (the largest integers), or that 64
    bits do not hold as microseconds."""
    lacking = pc.and_(_not_finite(numbers), given)
    beyond = pc.or_(pc.greater_equal(numbers, limit), pc.less_equal(numbers, -limit))
    return [
        (lacking, "a finite number" if pa.types.is_floating(numbers.type) else A_TIME),
        (
            pc.and_not(_true(beyond), lacking),
            "a time: it does not fit into 64 bits, or stands for a missing one",
        ),
    ]


def rounded(source: str) -> DataError:
    return DataError(
        f"{source}: some times have decimals and others are integers beyond 2⁵³, which a number "
        f"with decimals would round; {TIMES}."
    )


def all_match(texts: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False


def numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts as float64; null where one is not a number."""
    plain = pc.utf8_trim_whitespace(texts)
    plain = pc.if_else(pc.match_substring_regex(plain, FLOAT_CELL), plain, None)
    return pc.utf8_ltrim(plain, "+").cast(pa.float64())


def moments_of(texts: pa.Array, zone: str | None) -> tuple[pa.Array, pa.Array]:
    """Return dates in ISO 8601 as timestamps, and which cells are none, as of a 13th month."""
    for unit in ("us", "ns"):
        try:
            return texts.cast(pa.timestamp(unit, zone)), pa.array(np.zeros(len(texts), bool))
        except pa.ArrowInvalid:
            continue
    kind = pa.timestamp("us", zone)
    moments, wrong = [], []
    for text in texts.to_pylist():
        moment = None
        for unit in ("us", "ns"):  # digits beyond microseconds are dropped
            with suppress(pa.ArrowInvalid):
                moment = moment or pa.scalar(text).cast(pa.timestamp(unit, zone))
        moments.append(None if moment is None else moment.cast(kind, safe=False).value)
        wrong.append(text is not None and moment is None)
    return pa.array(moments, pa.int64()).cast(kind), pa.array(wrong, pa.bool_())


def _shown(cell: pa.Scalar) -> str:
    try:
        value = cell.as_py()
    except (OverflowError, ValueError):  # a date that Python does not have
        value = cell.cast(pa.int64()).as_py()
    return repr(value) if isinstance(value, str) else str(value)


def _blank(cells: pa.Array) -> pa.Array:
    """Return which cells are null or an empty text."""
    blank = pc.is_null(cells)
    if is_text(cells.type):
        blank = pc.or_(blank, _true(pc.equal(pc.utf8_trim_whitespace(cells), "")))
    return blank


def _not_finite(numbers: pa.Array) -> pa.Array:
    if pa.types.is_floating(numbers.type):
        return pc.invert(_true(pc.is_finite(numbers)))
    return pc.is_null(numbers)


def _from_2_63(cells: pa.Array) -> pa.Array:
    return _true(pc.greater_equal(cells, pa.scalar(2**63, pa.uint64())))


def _where(cells: pa.Array, mask: pa.Array) -> pa.Array:
    """Return the cells that are marked, and nulls in place of the others."""
    return pc.if_else(mask, cells, pa.scalar(None, cells.type))


def _without(cells: pa.Array, faults: Iterable[Fault]) -> pa.Array:
    """Return the cells with nulls in place of bad ones."""
    for bad, _ in faults:
        if pc.any(bad).as_py():
            cells = _where(cells, pc.invert(bad))
    return cells


def _true(mask: pa.Array) -> pa.Array:
    """Return a mask with False in place of nulls."""
    return pc.fill_null(mask, False)
