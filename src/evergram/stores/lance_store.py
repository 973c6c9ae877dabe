"""Stores in a LanceDB folder, and the user's own tables there.

A store has a table for each space, and a JSON file that lists them. A user's table has one vector
column per version. Searches of it read all rows, because LanceDB rounds distances and its indexes
miss rows. Filling a column changes no other cell; the ids are first written to the journal, the
table `TABLE_evergram`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from datetime import time, timedelta
from math import ceil, isqrt
from pathlib import Path
from time import time_ns
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
from filelock import Timeout

from evergram.atomic_files import file_lock, remove_folder, write_bytes
from evergram.errors import DataError, IntegrityError, StoreError, reason_and_remedy
from evergram.stores.adopted_store import BARE, BLOCK, AdoptedStore, TableFacts
from evergram.stores.filters import SIGNS, Condition, moment_of, of_other_type, type_of
from evergram.stores.store import (
    ID_TYPES,
    Checks,
    Floats,
    ReadableStore,
    Rows,
    Space,
    Store,
    best_first,
    errors_as_store_errors,
    no_store,
    not_ours,
    places_among,
    products,
    unchanged,
    was_closed,
)
from evergram.stores.table_per_version import TablePerVersionStore

try:
    import lancedb
    import lancedb.index
except ImportError as error:
    raise DataError("A store in LanceDB needs lancedb: pip install 'evergram[lance]'.") from error

T = TypeVar("T")

LOOKED_UP = 10_000  # ids in one condition, at most
WAIT = 60.0  # seconds, for another process that writes
# Every write adds a table version and files. After this many writes the files are compacted, and
# versions older than KEPT removed.
COMPACTED_AFTER = 64
KEPT = timedelta(hours=1)
INDEXED_FROM = 1_000  # smaller spaces are searched exactly
LOOKS = 50  # attempts at a consistent read before writers are blocked
# Of an index's √n lists, a search probes this share, or enough for ROWS_A_RESULT rows a result.
PROBED = 0.2
ROWS_A_RESULT = 20
COLUMN = "vector"
COLUMNS = ["id", COLUMN, "check"]
# Metadata of a column that `begin` added, written in the same commit.
ADDED = {b"evergram": b"added"}
IDS = ("integer", "text")


class LanceStore(TablePerVersionStore):
    kind: ClassVar[str] = "lance"

    def _connect(self, create: bool) -> None:
        self._folder = folder_of(self._place)
        self._file = self._folder / f"{self._name}.json"
        self._lock = threading.Lock()
        self._tables: dict[int, Any] = {}
        # By space: the table version last read, the table at that version, and its rows.
        self._pinned: dict[int, tuple[int, Any, int]] = {}
        self._counts: dict[int, int] = {}  # of a view
        # By version: what a view's last search by one query read; None while a writer is at work.
        self._seen: dict[int, tuple[Rows, Checks]] | None = None
        self._closed = False
        if not create and not self._file.exists():
            raise no_store(self.address)
        self._database = connected(self._folder, self.address)

    def build_index(self) -> list[int]:
        """Build an IVF_FLAT index for every space of at least INDEXED_FROM rows."""
        large = [v for v, count in self.count().items() if count >= INDEXED_FROM]
        for version in large:
            with self._writing():
                table = self._table(version)
                lists = isqrt(table.count_rows())
                config = lancedb.index.IvfFlat(distance_type="dot", num_partitions=lists)
                table.create_index(COLUMN, config=config, replace=True)
                table.optimize(cleanup_older_than=KEPT)
        return large

    def close(self) -> None:
        self._closed = True
        self._tables.clear()
        self._pinned.clear()

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        def state() -> tuple[Mapping[str, Any] | None, dict[int, int]]:
            # Every write increases the table's version.
            return self._load(), {space: int(self._table(space).version) for space in self.spaces()}

        view = copy(self)
        with errors_as_store_errors(self.address):
            for _ in range(LOOKS):
                view._moment, versions = state()
                # Versions only grow, so two equal reads show one consistent state.
                if (view._moment, versions) == state():
                    break
            else:
                with self._writing():
                    view._moment, versions = state()
            view._tables, view._counts = {}, {}
            view._seen = {} if (view._moment or {}).get("moving") is None else None
            for space, version in versions.items():
                known, table, rows = self._pinned.get(space, (None, None, 0))
                if known != version:
                    table = self._database.open_table(f"{self._name}-v{space}")
                    table.checkout(version)
                    rows = int(table.count_rows())
                    self._pinned[space] = version, table, rows
                view._tables[space], view._counts[space] = table, rows
        return work(view)

    @contextmanager
    def _writing(self) -> Iterator[Self]:
        with self._lock, writing(self._folder, self._name, self.address):
            yield self

    def _load(self) -> Mapping[str, Any] | None:
        if self._closed:
            raise was_closed(self.address)
        with errors_as_store_errors(self.address):
            if not self._file.exists():
                return None
            text = self._file.read_text()
        return dict(json.loads(text))

    def _save(self, record: dict[str, Any]) -> None:
        if not self._file.exists():
            for path in self._folder.glob(f"{self._name}-v*.lance"):
                raise not_ours(f"table {path.stem}", self.address)
        write_bytes(self._file, json.dumps(record, indent=2).encode())

    def _make_table(self, space: Space) -> None:
        name = f"{self._name}-v{space.version}"
        vector = pa.list_(pa.float32(), space.dim)
        schema = pa.schema({"id": self.id_type, COLUMN: vector, "check": pa.uint32()})
        if (self._folder / f"{name}.lance").exists():
            left = self._database.open_table(name)
            if left.schema.names != schema.names or left.count_rows():
                raise not_ours(f"table {name}", self.address)
            self._database.drop_table(name)
        self._database.create_table(name, schema=schema).create_index(
            "id", config=lancedb.index.BTree()
        )

    def _put(self, rows: Rows, checks: Checks) -> None:
        flat = pa.array(rows.vectors.reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(flat, rows.vectors.shape[1])
        written = pa.table([rows.ids, vectors, pa.array(checks)], COLUMNS)
        table = self._table(rows.version)
        merge = table.merge_insert("id").when_matched_update_all()
        merge.when_not_matched_insert_all().execute(written)
        self._compact(table)

    def _remove(self, version: int, ids: pa.Array) -> None:
        table = self._table(version)
        for condition in conditions(ids) if table.count_rows() else ():
            # Deleting nothing would still add a table version.
            if table.count_rows(condition):
                table.delete(condition)
                self._compact(table)

    def _get(self, version: int, ids: pa.Array) -> Iterator[tuple[Rows, Checks]]:
        with errors_as_store_errors(self.address):
            table = self._table(version)
            for condition in conditions(ids) if self._count(version) else ():
                query = table.search().where(condition).limit(len(ids))
                found = query.select(COLUMNS).to_arrow()
                if len(found) > len(found["id"].unique()):
                    raise IntegrityError(
                        f"{self.address} has an id twice in version {version}: the list of removed "
                        "rows is damaged; restore the store."
                    )
                if len(found):
                    yield rows_of(version, found), found["check"].to_numpy()

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        with errors_as_store_errors(self.address):
            for part in parts_of(self._table(version).search().select(COLUMNS), size):
                yield rows_of(version, part), part["check"].to_numpy()

    def _count(self, version: int) -> int:
        with errors_as_store_errors(self.address):
            return self._counts.get(version) or int(self._table(version).count_rows())

    def _superseded(self, version: int, ids: pa.Array) -> pa.Array:
        # No writer was at work at the moment of the view, or killed before.
        return ids.slice(0, 0) if self._seen is not None else super()._superseded(version, ids)

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        parts = list[tuple[Rows, Checks]]()
        for rows, checks in (self._seen or {}).values():
            here, places = places_among(ids, rows.ids)
            if len(places):
                mine = Rows(rows.version, ids.filter(pa.array(here)), rows.vectors[places])
                parts.append((mine, checks[places]))
                ids = ids.filter(pa.array(~here))
        return [*parts, *super()._read(ids)] if len(ids) else parts

    def _best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        if ids is not None:
            return self._best_among(version, queries, k, ids)
        best = []
        with errors_as_store_errors(self.address):
            table = self._table(version)
            count = max(self._count(version), 1)
            lists = isqrt(count) + 1
            probes = ceil(max(PROBED * lists, lists * min(1.0, k * ROWS_A_RESULT / count)))
            for query in queries:
                search = table.search(query).distance_type("dot").limit(min(k, count))
                search = search.minimum_nprobes(probes).maximum_nprobes(0)
                found = search.select([*COLUMNS, "_distance"]).to_arrow()
                hits = rows_of(version, found)
                if self._seen is not None and len(queries) == 1:
                    self._seen[version] = hits, found["check"].to_numpy()
                # LanceDB's distance, 1 - score, loses digits of small scores.
                best.append(best_first(hits.ids, products(query[None], hits.vectors)[0], k))
        return best

    def _table(self, version: int) -> Any:
        if self._closed:
            raise was_closed(self.address)
        table = self._tables.get(version)
        if table is None:
            table = self._database.open_table(f"{self._name}-v{version}")
            self._tables[version] = table
        return table

    def _compact(self, table: Any) -> None:
        if table.version % COMPACTED_AFTER == 0:
            # If this fails, say on a full disk, the rows are safe and a later write compacts.
            with suppress(Exception):
                table.optimize(cleanup_older_than=KEPT)


class AdoptedLanceTable(AdoptedStore):
    kind: ClassVar[str] = "lance-table"

    def _connect(self) -> None:
        self._folder = folder_of(self._place)
        # LanceDB would create it.
        if not self._folder.is_dir():
            raise DataError(
                f"There is no folder {self._place}; give the folder of your LanceDB tables."
            )
        self._database = connected(self._folder, self.address)
        self._table = self._open()

    def _look(self) -> TableFacts:
        with errors_as_store_errors(self.address):
            schema = self._table.schema
        types = dict(zip(schema.names, schema.types, strict=True))
        for column in (self._id, *self._names.vectors.values(), *self._names.filters):
            quoted(column)
        columns = self._wanted(types)
        self._check_columns(
            types,
            [self._id],
            lambda kind: not pa.types.is_dictionary(kind) and _sort(kind) in IDS,
            "whole numbers of at most 64 bits with a sign, or string, for ids",
        )
        self._check_columns(
            types,
            columns.values(),
            lambda kind: (
                pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)
            ),
            "a fixed_size_list of float, double or halffloat, for vectors",
        )
        self._check_columns(
            types,
            self._names.filters,
            _sort,
            "whole numbers, float, double, bool, string, date32 or timestamp, to be named by "
            "filter=",
        )
        id_type = ID_TYPES["int64" if pa.types.is_integer(types[self._id]) else "string"]
        return TableFacts(id_type, {v: int(types[c].list_size) for v, c in columns.items()}, types)

    def _filter_of(self, conditions: list[Condition]) -> str:
        return " and ".join(_condition(one, self._known.types[one.field]) for one in conditions)

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        self._facts()
        pinned = self._open()
        with errors_as_store_errors(self.address):
            pinned.checkout(pinned.version)
        view = self._at_this_moment(_table=pinned)
        view._known = view._look()
        return work(view)

    def _state(self) -> object:
        """Return the table's version, and its manifest's inode, time and size, which tell a
        recreated table from the old one at the same version."""
        with errors_as_store_errors(self.address):
            version = int(self._table.version)
        # In newer tables names count down, so that a listing starts with the latest.
        for name in (f"{2**64 - 1 - version:020}", str(version)):
            path = self._folder / f"{self._names.table}.lance" / "_versions" / f"{name}.manifest"
            with suppress(OSError):
                status = path.stat()
                return version, (status.st_ino, status.st_mtime_ns, status.st_size)
        return version, None

    def _rows(
        self, version: int, ids: pa.Array | None, size: int, *, own: bool = True
    ) -> Iterator[Rows]:
        column = quoted(self._id)
        if self._known.types[self._id] != pa.int64() and pa.types.is_integer(self.id_type):
            # LanceDB rejects numbers that the column cannot hold.
            column = f"cast({column} as bigint)"
        asked = [None] if ids is None else conditions(ids, column)
        with errors_as_store_errors(self.address):
            for among in asked:
                for part in parts_of(self._query(version, own, among), size):
                    yield rows_of(version, part, self._id, self._names.vectors[version])

    def _count(self, version: int) -> int:
        with errors_as_store_errors(self.address):
            return int(self._table.count_rows(self._condition(version)))

    def _has_rows(self, version: int) -> bool:
        with errors_as_store_errors(self.address):
            return len(self._query(version).limit(1).to_arrow()) > 0

    def _query(self, version: int, own: bool = True, among: str | None = None) -> Any:
        condition = self._condition(version, own, among)
        return (
            self._table.search().where(condition).select([self._id, self._names.vectors[version]])
        )

    def _condition(self, version: int, own: bool = True, among: str | None = None) -> str:
        """Return the condition for a version's rows; without `own`, for all with its vector."""
        parts = [f"{quoted(self._id)} is not null"]
        for column, there in self._conditions_on(version, own):
            parts.append(f"{quoted(column)} is {'not null' if there else 'null'}")
        return " and ".join([*parts, *(one for one in (self._chosen, among) if one is not None)])

    def bare_ids(self) -> Iterator[pa.Array]:
        self._facts()
        with errors_as_store_errors(self.address):
            query = self._table.search().where(self._condition(BARE)).select([self._id])
            for part in parts_of(query, BLOCK):
                yield part[self._id].combine_chunks().cast(self.id_type)

    def begin(self, space: Space, side: str = "") -> None:
        with writing(self._folder, self._journal_name, self.address):
            facts, columns = self._facts(), self._names.vectors
            if space.version not in facts.dims:
                kinds = (facts.types[columns[v]].value_type for v in reversed(facts.dims))
                vector = pa.list_(next(kinds, pa.float32()), space.dim)
                self._table.add_columns(pa.field(columns[space.version], vector, metadata=ADDED))

    def refresh(self, rows: Rows, saved: Store | None = None) -> None:
        with writing(self._folder, self._journal_name, self.address):
            if len(rows := self._without_vector(rows)):
                ids = pa.array([rows.ids.to_pylist()], pa.list_(self.id_type))
                name = self._names.vectors[rows.version]
                entry = {"number": [time_ns()], "column": [name], "ids": ids}
                self._journal(create=True).add(pa.table(entry))
                self._put_cells(rows, "null")

    def journal(self, version: int) -> list[tuple[int, pa.Array]]:
        with writing(self._folder, self._journal_name, self.address):
            table, name = self._journal(), self._names.vectors[version]
            entries = [] if table is None else table.to_arrow().to_pylist()
            mine = [entry for entry in entries if entry["column"] == name]
            return [(entry["number"], pa.array(entry["ids"], self.id_type)) for entry in mine]

    def clear_cells(self, number: int, rows: Rows) -> None:
        with writing(self._folder, self._journal_name, self.address):
            kind = self._type_of(rows.version).value_type
            stored = rows.vectors.astype(kind.to_pandas_dtype()).astype(np.float32)
            rows = replace(rows, vectors=stored)
            ids = unchanged(self._stored_rows(rows), rows)
            if len(ids):
                nothing = np.zeros((len(ids), 0), np.float32)
                self._put_cells(Rows(rows.version, ids, nothing), "not null")
            if (journal := self._journal()) is not None:
                journal.delete(f"number = {number}")

    def _drop_column(self, version: int) -> None:
        name = self._names.vectors[version]
        with writing(self._folder, self._journal_name, self.address):
            schema = self._table.schema
            added = name in schema.names and schema.field(name).metadata == ADDED
            if added and not self._table.count_rows(f"{quoted(name)} is not null"):
                self._table.drop_columns([name])
            if (journal := self._journal()) is not None:
                if name not in self._table.schema.names:
                    journal.delete(f"`column` = {literal(name)}")
                if not journal.count_rows():
                    # Renames first: `drop_table`, if killed, would leave a part of the table.
                    remove_folder(self._folder / f"{self._journal_name}.lance")

    def _put_cells(self, rows: Rows, now: str) -> None:
        """Write vectors, or NULL if they have 0 dims, to cells that are "null" or "not null"."""
        name, kind = self._names.vectors[rows.version], self._type_of(rows.version)
        cells = pa.nulls(len(rows), kind)
        if rows.vectors.size:
            values = rows.vectors.reshape(-1).astype(kind.value_type.to_pandas_dtype())
            cells = pa.FixedSizeListArray.from_arrays(pa.array(values), rows.vectors.shape[1])
        ids = rows.ids.cast(self._known.types[self._id])
        written = pa.table({self._id: ids, name: cells})
        merge = self._table.merge_insert(self._id)
        merge = merge.when_matched_update_all(where=f"target.{quoted(name)} is {now}")
        merge.execute(written, on_bad_vectors="null")

    def _journal(self, create: bool = False) -> Any:
        if (self._folder / f"{self._journal_name}.lance").is_dir():
            return self._database.open_table(self._journal_name)
        kinds = [("number", pa.int64()), ("column", pa.string()), ("ids", pa.list_(self.id_type))]
        schema = pa.schema(kinds)
        return self._database.create_table(self._journal_name, schema=schema) if create else None

    def _open(self) -> Any:
        name = self._names.table
        with errors_as_store_errors(self.address):
            if not (self._folder / f"{name}.lance").is_dir():
                tables = sorted(path.stem for path in self._folder.glob("*.lance"))
                raise DataError(
                    f"There is no table {name!r} in the folder {self._place}; it has "
                    f"{', '.join(tables) or 'none'}."
                )
            return self._database.open_table(name)


def folder_of(place: str) -> Path:
    """Raises: DataError: it is a URL; the message does not quote it, because it may hold a key."""
    if "://" in place:
        raise DataError(
            "A LanceDB is read from a folder on a disk of this machine, and the address has a URL; "
            "buckets and LanceDB's cloud are not read: copy the tables to a disk."
        )
    return Path(place)


@contextmanager
def writing(folder: Path, name: str, shown: str) -> Iterator[None]:
    """Hold the lock for writing tables of this name."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = file_lock(folder / f"{name}.lock", timeout=WAIT)
        with lock, errors_as_store_errors(shown):
            yield
    except Timeout:
        raise StoreError(
            f"Another process has been writing {shown} for {WAIT:.0f} s; try again later."
        ) from None
    except OSError as error:
        raise StoreError(f"{shown} cannot be written: {reason_and_remedy(error)}.") from error


def connected(folder: Path, shown: str) -> Any:
    with errors_as_store_errors(shown):
        # 0: every read checks for writes by other processes.
        return lancedb.connect(folder, read_consistency_interval=timedelta(0))


def parts_of(query: Any, size: int) -> Iterator[pa.Table]:
    """Yield the results of a query in tables of at most `size` rows."""
    for batch in query.to_batches(size):
        for start in range(0, batch.num_rows, size):
            yield pa.table(batch.slice(start, size))


def rows_of(version: int, table: pa.Table, key: str = "id", name: str = COLUMN) -> Rows:
    """Return rows from a table without NULL vectors; a NULL inside a vector becomes NaN."""
    column, ids = table[name].combine_chunks(), table[key].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        vectors: Floats = flat.astype(np.float32, copy=False)
    whole = pa.types.is_integer(ids.type)
    ids = ids.cast(ID_TYPES["int64" if whole else "string"])
    return Rows(version, ids, vectors.reshape(len(column), column.type.list_size))


# LanceDB's SQL


def conditions(ids: pa.Array, column: str = "id") -> Iterator[str]:
    """Yield conditions `id in (…)` of at most LOOKED_UP ids each."""
    for start in range(0, len(ids), LOOKED_UP):
        yield f"{column} in ({', '.join(map(literal, ids.slice(start, LOOKED_UP).to_pylist()))})"


def literal(key: int | str) -> str:
    if isinstance(key, str):
        return "'" + key.replace("'", "''") + "'"
    # LanceDB parses the smallest int64 as minus a number that is too large.
    return f"cast('{key}' as bigint)" if key == -(2**63) else str(key)


def quoted(name: str) -> str:
    """Return a column's name in backticks. Raises: DataError: it has a backtick."""
    if "`" in name:
        raise DataError(
            f"The column {name!r} has a ` in its name, which LanceDB's SQL cannot write; name "
            "another column, or rename this one."
        )
    return f"`{name}`"


def _sort(column: pa.DataType) -> str | None:
    """Return the kind of a column; None if filters do not support its type."""
    column = column.value_type if pa.types.is_dictionary(column) else column
    if pa.types.is_integer(column) and column != pa.uint64():
        return "integer"
    if column in (pa.float32(), pa.float64()):
        return "number"
    if pa.types.is_boolean(column):
        return "boolean"
    if column in (pa.string(), pa.large_string()):
        return "text"
    return "time" if pa.types.is_date32(column) or pa.types.is_timestamp(column) else None


def _condition(condition: Condition, column: pa.DataType) -> str:
    """Raises: DataError: a value cannot be compared with the column."""
    name = quoted(condition.field)
    column = column.value_type if pa.types.is_dictionary(column) else column
    match _sort(column), type_of(condition):
        case ("integer" | "number") as sort, "number":
            # LanceDB rejects numbers that the column cannot hold, such as 2.5.
            whole = sort == "integer" and all(isinstance(v, int) for v in condition.values)
            kind = "bigint" if whole else "float" if pa.types.is_float32(column) else "double"
            if sort == "integer" and not (whole and column == pa.int64()):
                name = f"cast({name} as {kind})"
            values = [
                literal(int(v)) if whole else f"cast('{float(v)!r}' as {kind})"
                for v in condition.values
            ]
        case "boolean", "boolean" if condition.operator == "in":
            values = [str(value).lower() for value in condition.values]
        case "text", "text":
            values = [literal(str(value)) for value in condition.values]
        case "time", "text":
            moments = [moment_of(condition, str(v), str(column)) for v in condition.values]
            values = [f"timestamp '{one.replace(tzinfo=None).isoformat(' ')}'" for one in moments]
            if pa.types.is_date32(column):
                if any(one.time() != time() for one in moments):
                    raise of_other_type(condition, str(column))
                values = [f"date '{one.date()}'" for one in moments]
        case _:
            raise of_other_type(condition, str(column))
    if condition.operator == "in":
        return f"{name} in ({', '.join(values)})"
    return f"{name} {SIGNS[condition.operator]} {values[0]}"
