"""A table of one's own in LanceDB, with a column of vectors for each version.

Every search reads all rows that it may return and compares them here: LanceDB's own searches round
their distances, and its indexes miss rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError
from evergram.stores.adopted_store import (
    AdoptedNames,
    AdoptedStore,
    TableDriver,
    TableFacts,
    id_twice,
    no_column,
    read_names,
    split_address,
    wrong_column,
)
from evergram.stores.filters import (
    Condition,
    Filter,
    Value,
    check_allowed,
    check_closed,
    of_other_type,
    read_conditions,
    type_of,
)
from evergram.stores.lance.lance_folder import (
    check_local,
    conditions,
    lancedb_module,
    literal,
    vectors_of,
)
from evergram.stores.rows import ID_TYPES, Rows
from evergram.stores.store import errors_as_store_errors

T = TypeVar("T")

SCHEME = "lance-table:"
# A version of the table, and inode, time of writing in ns and bytes of its manifest, which LanceDB
# writes once: a table that is dropped and made anew has the numbers of the one before, and other
# manifests.
State = tuple[int, tuple[int, int, int] | None]
SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
NOTHING = "false"
# Strings and quoted names.
_STRINGS = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`"""
# What is compared with a column of times, and with one of dates.
_EXAMPLES = {
    False: "a date or a time such as '2026-01-31' or '2026-01-31T12:00:00'",
    True: "a date without a time, such as '2026-01-31'",
}


class LanceTable(TableDriver):
    form = (
        "lance-table:DIR#table=TABLE&id=COLUMN&v0=COLUMN, with v1=COLUMN … for later versions, and "
        "if need be filter=COLUMN,COLUMN; write & in a name as %26, # as %23, a comma as %2C and % "
        "as %25"
    )

    def __init__(self, folder: Path, names: AdoptedNames) -> None:
        super().__init__(f"{SCHEME}{folder}#{names.fragment}", names)
        self._folder, self._name = folder, names.others["table"]
        self._id = names.id or "id"
        with errors_as_store_errors(self.shown):
            # 0: every read looks whether others have written.
            self._database = lancedb_module().connect(
                folder, read_consistency_interval=timedelta(0)
            )
        self._table = self._open()
        # The table at its latest state that was read, shared by all views.
        self._pinned: dict[State, Any] = {}

    @classmethod
    def parse(cls, address: str) -> tuple[Any, ...]:
        place, rest = split_address(address.removeprefix(SCHEME), cls.form)
        check_local(place, "lance-table")
        names = read_names(rest, "table", cls.form)
        # A folder of its own would be made by LanceDB.
        if not Path(place).is_dir():
            raise DataError(f"There is no folder {place}; give the folder of your LanceDB tables.")
        return Path(place), names

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self._folder.resolve(), self.names

    @property
    def place(self) -> str:
        return f"{SCHEME}{self._folder.resolve()}#{self.names.fragment}"

    def facts(self) -> TableFacts:
        types = self._types()
        number = pa.types.is_integer(types[self._id])
        dims = {v: int(types[c].list_size) for v, c in self.names.vectors.items()}
        return TableFacts(ID_TYPES["int64" if number else "string"], dict(dims))

    def refuse_twice(self) -> None:
        with errors_as_store_errors(self.shown):
            query = self._query(f"{quoted(self._id)} is not null", [])
            counts = pc.value_counts(query.to_arrow()[self._id].combine_chunks())
        for key in counts.field(0).filter(pc.greater(counts.field(1), 1)):
            raise id_twice(self.shown, key.as_py())

    def filter_of(self, asked: Filter) -> str:
        condition = sql_of(asked, self._types(), self.names.filters)
        if isinstance(asked, str):
            try:
                self._query(condition, []).explain_plan()
            except Exception as error:
                sentence = " ".join(str(error).split())[:200].rstrip(".")
                raise DataError(
                    f"LanceDB does not take the filter {asked[:80]!r}: {sentence}."
                ) from error
        return condition

    def at_one_moment(self, work: Callable[[Self], T]) -> T:
        with errors_as_store_errors(self.shown):
            state = self.state()
            pinned = self._pinned.get(state)
            if pinned is None:
                pinned = self._open()
                pinned.checkout(state[0])
                self._pinned.clear()
                self._pinned[state] = pinned
        moment = copy(self)
        moment._table = pinned
        return work(moment)

    def state(self) -> State:
        with errors_as_store_errors(self.shown):
            version = int(self._table.version)
        # Newer tables count down, so that the latest is the first in a listing.
        for name in (f"{2**64 - 1 - version:020}", str(version)):
            path = self._folder / f"{self._name}.lance" / "_versions" / f"{name}.manifest"
            try:
                status = path.stat()
            except OSError:
                continue
            return version, (status.st_ino, status.st_mtime_ns, status.st_size)
        return version, None

    def rows(
        self, version: int, ids: pa.Array | None, chosen: Any, size: int, *, own: bool = True
    ) -> Iterator[Rows]:
        column, condition = self.names.vectors[version], self._condition(version, chosen, own)
        id_type = self.facts().id_type
        with errors_as_store_errors(self.shown):
            for among in self._among(ids):
                for batch in self._query(condition + among, [column]).to_batches(size):
                    for start in range(0, batch.num_rows, size):
                        table = pa.table(batch.slice(start, size))
                        keys = table[self._id].combine_chunks().cast(id_type)
                        yield Rows(version, keys, vectors_of(table, column))

    def count(self, version: int, chosen: Any) -> int:
        with errors_as_store_errors(self.shown):
            return int(self._table.count_rows(self._condition(version, chosen)))

    def has_rows(self, version: int, chosen: Any) -> bool:
        with errors_as_store_errors(self.shown):
            return len(self._query(self._condition(version, chosen), []).limit(1).to_arrow()) > 0

    def close(self) -> None:
        self._pinned.clear()

    def _query(self, condition: str, columns: list[str]) -> Any:
        return self._table.search().where(condition).select([self._id, *columns])

    def _condition(self, version: int, chosen: str | None, own: bool = True) -> str:
        """Return the condition of the rows of a version, or of all with its vector."""
        parts = [f"{quoted(self._id)} is not null"]
        parts += [
            f"{quoted(column)} is {'not null' if one == version else 'null'}"
            for one, column in self.names.vectors.items()
            if one == version or (own and one > version)
        ]
        return " and ".join(parts if chosen is None else [*parts, chosen])

    def _among(self, ids: pa.Array | None) -> Iterator[str]:
        """Yield conditions for some ids, or the one of all."""
        if ids is None:
            yield ""
            return
        if pa.types.is_integer(ids.type):
            # LanceDB refuses a number that the column cannot hold.
            lowest, highest = limits(self._types()[self._id])
            kept = [key for key in ids.to_pylist() if lowest <= key <= highest]
            ids = pa.array(kept, ids.type)
        for condition in conditions(ids, quoted(self._id)):
            yield f" and {condition}"

    def _types(self) -> dict[str, pa.DataType]:
        """Return the columns' types. Raises: as `facts`."""
        with errors_as_store_errors(self.shown):
            schema = self._table.schema
        types = dict(zip(schema.names, schema.types, strict=True))
        uses: list[tuple[str, Callable[[pa.DataType], bool], str]] = [
            (self._id, _is_id, "whole numbers of at most 64 bits with a sign, or string, for ids")
        ]
        for column in self.names.vectors.values():
            words = "a fixed_size_list of float, double or halffloat, for vectors"
            uses.append((column, _is_vector, words))
        for column in self.names.filters:
            words = (
                "whole numbers, float, double, bool, string, date32 or timestamp, to be named by "
                "filter= (SQL in Python names any column)"
            )
            uses.append((column, is_comparable, words))
        for column, fits, words in uses:
            quoted(column)
            if column not in types:
                raise no_column(self.shown, column, "", list(types))
            if not fits(types[column]):
                raise wrong_column(self.shown, column, types[column], words)
        return types

    def _open(self) -> Any:
        with errors_as_store_errors(self.shown):
            if not (self._folder / f"{self._name}.lance").is_dir():
                tables = sorted(path.stem for path in self._folder.glob("*.lance"))
                raise DataError(
                    f"There is no table {self._name!r} in the folder {self._folder}; it has "
                    f"{', '.join(tables) or 'none'}."
                )
            return self._database.open_table(self._name)


def _is_id(kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):
        return bool(kind != pa.uint64())
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_vector(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type))


class AdoptedLanceTable(AdoptedStore):
    kind: ClassVar[str] = "lance-table"
    driver = LanceTable


def quoted(name: str) -> str:
    """Return a column's name as LanceDB's SQL writes it. Raises: DataError: it cannot write it."""
    if "`" in name:
        raise DataError(
            f"The column {name!r} has a ` in its name, which LanceDB's SQL cannot write; name "
            "another column, or rename this one."
        )
    return f"`{name}`"


def sql_of(asked: Filter, columns: Mapping[str, pa.DataType], allowed: Sequence[str]) -> str:
    """Return a filter as a boolean expression in parentheses.

    Args:
        asked: conditions; or LanceDB's SQL, which is used as it is.
        columns: of the table, with their types.
        allowed: columns that conditions may name.
    Raises: DataError: the filter is wrong.
    """
    if isinstance(asked, Mapping):
        parts = [_condition(one, columns, allowed) for one in read_conditions(asked)]
        return f"({' and '.join(parts)})"
    if not isinstance(asked, str) or not asked.strip() or "\0" in asked:
        raise DataError(
            "A filter of a LanceDB table is a dictionary of conditions, or in LanceDB's SQL a "
            "boolean expression, such as \"category = 'news'\"; it takes no list of values."
        )
    check_closed(asked, _STRINGS)
    # A comment must not swallow the parenthesis.
    return f"(\n{asked}\n)"


def is_comparable(column: pa.DataType) -> bool:
    """Return whether conditions can be on a column of a type."""
    if pa.types.is_dictionary(column):
        column = column.value_type
    return any(
        is_kind(column)
        for is_kind in (
            pa.types.is_integer,
            pa.types.is_float32,
            pa.types.is_float64,
            pa.types.is_boolean,
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_date32,
            pa.types.is_timestamp,
        )
    )


def _condition(
    condition: Condition, columns: Mapping[str, pa.DataType], allowed: Sequence[str]
) -> str:
    check_allowed(condition, allowed)
    column = columns[condition.field]
    if pa.types.is_dictionary(column):
        column = column.value_type
    name, sort = quoted(condition.field), type_of(condition)
    if pa.types.is_integer(column) and sort == "number":
        return _of_integers(condition, name, column)
    if sort == "number" and (pa.types.is_float32(column) or pa.types.is_float64(column)):
        values = [_floating(value, column) for value in condition.values]
    elif pa.types.is_boolean(column) and sort == "boolean" and condition.operator == "in":
        values = [str(value).lower() for value in condition.values]
    elif sort == "text" and (pa.types.is_string(column) or pa.types.is_large_string(column)):
        values = [literal(str(value)) for value in condition.values]
    elif sort == "text" and (pa.types.is_date32(column) or pa.types.is_timestamp(column)):
        values = [_time(condition, str(value), column) for value in condition.values]
    else:
        raise of_other_type(condition, str(column))
    if condition.operator == "in":
        return f"{name} in ({', '.join(values)})"
    return f"{name} {SIGNS[condition.operator]} {values[0]}"


def _of_integers(condition: Condition, name: str, column: pa.DataType) -> str:
    """Return a condition on a column of whole numbers. LanceDB refuses a number that the column
    cannot hold, such as 2.5, so the numbers that fulfil the condition are worked out here."""
    lowest, highest = limits(column)
    numbers = [v for v in condition.values if isinstance(v, (int, float))]
    if condition.operator == "in":
        whole = [int(v) for v in numbers if v == math.floor(v) and lowest <= v <= highest]
        return f"{name} in ({', '.join(map(literal, whole))})" if whole else NOTHING
    bound = numbers[0]
    if condition.operator in ("gt", "gte"):
        least = math.floor(bound) + 1 if condition.operator == "gt" else math.ceil(bound)
        if least > highest:
            return NOTHING
        return f"{name} is not null" if least <= lowest else f"{name} >= {literal(least)}"
    most = math.ceil(bound) - 1 if condition.operator == "lt" else math.floor(bound)
    if most < lowest:
        return NOTHING
    return f"{name} is not null" if most >= highest else f"{name} <= {literal(most)}"


def limits(column: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest number of a type of whole numbers."""
    info = np.iinfo(column.to_pandas_dtype())
    return int(info.min), int(info.max)


def _floating(value: Value, column: pa.DataType) -> str:
    number, name = float(value), "double"
    if pa.types.is_float32(column):
        with np.errstate(over="ignore"):
            number, name = float(np.float32(number)), "float"
    return f"cast('{number!r}' as {name})"


def _time(condition: Condition, text: str, column: pa.DataType) -> str:
    """Return a date or a time, which without a zone is of UTC. Raises: DataError: it is none."""
    try:
        if pa.types.is_date32(column):
            return f"date '{date.fromisoformat(text).isoformat()}'"
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise DataError(
            f"A filter compares the field {condition.field[:80]!r}, of type {column}, with "
            f"{text[:40]!r}; give {_EXAMPLES[pa.types.is_date32(column)]}."
        ) from None
    return f"timestamp '{moment.isoformat(sep=' ')}'"
