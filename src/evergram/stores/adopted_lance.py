"""A table of the user's own in LanceDB, with a column of vectors for each version.

Every search reads all rows that it may return and compares them here: LanceDB's own searches round
their distances, and its indexes miss rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from evergram.errors import DataError
from evergram.stores.adopted_store import (
    AdoptedNames,
    AdoptedStore,
    TableFacts,
    check_column,
)
from evergram.stores.filters import SIGNS, Condition, of_other_type, type_of
from evergram.stores.lance_store import check_local, conditions, connected, literal, vectors_of
from evergram.stores.rows import ID_TYPES, Rows
from evergram.stores.store import ReadableStore, errors_as_store_errors

T = TypeVar("T")

# A version of the table, and inode, time of writing in ns and bytes of its manifest, which LanceDB
# writes once: a table that is dropped and made anew has the numbers of the one before, and other
# manifests.
State = tuple[int, tuple[int, int, int] | None]
# What is compared with a column of times, and with one of dates.
_EXAMPLES = {
    False: "a date or a time such as '2026-01-31' or '2026-01-31T12:00:00'",
    True: "a date without a time, such as '2026-01-31'",
}


class AdoptedLanceTable(AdoptedStore):
    kind: ClassVar[str] = "lance-table"
    form: ClassVar[str] = (
        "lance-table:DIR#table=TABLE&id=COLUMN&v0=COLUMN, with v1=COLUMN … for later versions, and "
        "if need be filter=COLUMN,COLUMN; write & in a name as %26, # as %23, a comma as %2C and % "
        "as %25"
    )

    @classmethod
    def _place_of(cls, place: str, names: AdoptedNames) -> Path:
        check_local(place, cls.kind)
        # A folder of its own would be made by LanceDB.
        if not Path(place).is_dir():
            raise DataError(f"There is no folder {place}; give the folder of your LanceDB tables.")
        return Path(place)

    @property
    def _anywhere(self) -> Path:
        return Path(self._where).resolve()

    def _connect(self) -> None:
        self._id = self._names.id or "id"
        self._database = connected(self._where, self.address)
        self._table = self._open()
        # The table at its latest state that was read, shared by all views.
        self._pinned: dict[State, Any] = {}

    def _disconnect(self) -> None:
        self._pinned = {}

    def _look(self) -> TableFacts:
        with errors_as_store_errors(self.address):
            schema = self._table.schema
        types = dict(zip(schema.names, schema.types, strict=True))
        vectors = self._names.vectors
        uses: list[tuple[list[str], Callable[[pa.DataType], bool], str]] = [
            (
                [self._id],
                _is_id,
                "whole numbers of at most 64 bits with a sign, or string, for ids",
            ),
            (
                list(vectors.values()),
                lambda kind: (
                    pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)
                ),
                "a fixed_size_list of float, double or halffloat, for vectors",
            ),
            (
                list(self._names.filters),
                lambda kind: _sort(kind) is not None,
                "whole numbers, float, double, bool, string, date32 or timestamp, to be named by "
                "filter=",
            ),
        ]
        for columns, fits, words in uses:
            for column in columns:
                quoted(column)
                check_column(self.address, column, types, fits, words)
        number = pa.types.is_integer(types[self._id])
        dims: dict[int, int] = {v: int(types[c].list_size) for v, c in vectors.items()}
        return TableFacts(ID_TYPES["int64" if number else "string"], dims, types)

    def _filter_of(self, conditions: list[Condition]) -> str:
        return sql_of(conditions, self._known.types)

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        self._facts()
        with errors_as_store_errors(self.address):
            state = self._state()
            pinned = self._pinned.get(state)
            if pinned is None:
                pinned = self._open()
                pinned.checkout(state[0])
                self._pinned.clear()
                self._pinned[state] = pinned
        view = self._at_this_moment()
        view._table = pinned
        view._known = view._look()
        return work(view)

    def _state(self) -> State:
        with errors_as_store_errors(self.address):
            version = int(self._table.version)
        # Newer tables count down, so that the latest is the first in a listing.
        for name in (f"{2**64 - 1 - version:020}", str(version)):
            path = self._where / f"{self._names.table}.lance" / "_versions" / f"{name}.manifest"
            try:
                status = path.stat()
            except OSError:
                continue
            return version, (status.st_ino, status.st_mtime_ns, status.st_size)
        return version, None

    def _rows(
        self, version: int, ids: pa.Array | None, size: int, *, own: bool = True
    ) -> Iterator[Rows]:
        column, condition = self._names.vectors[version], self._condition(version, own)
        with errors_as_store_errors(self.address):
            for among in self._among(ids):
                for batch in self._query(condition + among, [column]).to_batches(size):
                    for start in range(0, batch.num_rows, size):
                        table = pa.table(batch.slice(start, size))
                        keys = table[self._id].combine_chunks().cast(self._known.id_type)
                        yield Rows(version, keys, vectors_of(table, column))

    def _count(self, version: int) -> int:
        with errors_as_store_errors(self.address):
            return int(self._table.count_rows(self._condition(version)))

    def _has_rows(self, version: int) -> bool:
        with errors_as_store_errors(self.address):
            return len(self._query(self._condition(version), []).limit(1).to_arrow()) > 0

    def _query(self, condition: str, columns: list[str]) -> Any:
        return self._table.search().where(condition).select([self._id, *columns])

    def _condition(self, version: int, own: bool = True) -> str:
        """Return the condition of the rows of a version, or of all with its vector."""
        parts = [f"{quoted(self._id)} is not null"]
        parts += [
            f"{quoted(column)} is {'not null' if one == version else 'null'}"
            for one, column in self._names.vectors.items()
            if one == version or (own and one > version)
        ]
        return " and ".join(parts if self._chosen is None else [*parts, self._chosen])

    def _among(self, ids: pa.Array | None) -> Iterator[str]:
        """Yield conditions for some ids, or the one of all."""
        if ids is None:
            yield ""
            return
        column = quoted(self._id)
        if pa.types.is_integer(ids.type) and self._known.types[self._id] != pa.int64():
            # LanceDB refuses a number that the column cannot hold.
            column = f"cast({column} as bigint)"
        for condition in conditions(ids, column):
            yield f" and {condition}"

    def _open(self) -> Any:
        name = self._names.table
        with errors_as_store_errors(self.address):
            if not (self._where / f"{name}.lance").is_dir():
                tables = sorted(path.stem for path in self._where.glob("*.lance"))
                raise DataError(
                    f"There is no table {name!r} in the folder {self._where}; it has "
                    f"{', '.join(tables) or 'none'}."
                )
            return self._database.open_table(name)


def _is_id(kind: pa.DataType) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(text or (pa.types.is_integer(kind) and kind != pa.uint64()))


def quoted(name: str) -> str:
    """Return a column's name as LanceDB's SQL writes it. Raises: DataError: it cannot write it."""
    if "`" in name:
        raise DataError(
            f"The column {name!r} has a ` in its name, which LanceDB's SQL cannot write; name "
            "another column, or rename this one."
        )
    return f"`{name}`"


def sql_of(asked: list[Condition], columns: Mapping[str, pa.DataType]) -> str:
    """Return conditions as a boolean expression. Raises: DataError: a value cannot be compared with
    its column."""
    return " and ".join(_condition(one, columns[one.field]) for one in asked)


def _sort(column: pa.DataType) -> str | None:
    """Return of which sort a column is that conditions can be on; None for others."""
    if pa.types.is_dictionary(column):
        column = column.value_type
    sorts: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
        "integer": (lambda kind: pa.types.is_integer(kind) and kind != pa.uint64(),),
        "number": (pa.types.is_float32, pa.types.is_float64),
        "boolean": (pa.types.is_boolean,),
        "text": (pa.types.is_string, pa.types.is_large_string),
        "time": (pa.types.is_date32, pa.types.is_timestamp),
    }
    return next((sort for sort, kinds in sorts.items() if any(is_(column) for is_ in kinds)), None)


def _condition(condition: Condition, column: pa.DataType) -> str:
    column = column.value_type if pa.types.is_dictionary(column) else column
    name, given = quoted(condition.field), type_of(condition)
    match _sort(column), given:
        case "integer", "number":
            # LanceDB refuses a number that the column cannot hold, such as 2.5.
            whole = all(isinstance(value, int) for value in condition.values)
            kind = "bigint" if whole else "double"
            name = name if whole and column == pa.int64() else f"cast({name} as {kind})"
            values = [_number(value, kind) for value in condition.values]
        case "number", "number":
            kind = "float" if pa.types.is_float32(column) else "double"
            values = [_number(value, kind) for value in condition.values]
        case "boolean", "boolean" if condition.operator == "in":
            values = [str(value).lower() for value in condition.values]
        case "text", "text":
            values = [literal(str(value)) for value in condition.values]
        case "time", "text":
            values = [_time(condition, str(value), column) for value in condition.values]
        case _:
            raise of_other_type(condition, str(column))
    if condition.operator == "in":
        return f"{name} in ({', '.join(values)})"
    return f"{name} {SIGNS[condition.operator]} {values[0]}"


def _number(value: float | str, kind: str) -> str:
    return literal(int(value)) if kind == "bigint" else f"cast('{float(value)!r}' as {kind})"


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
