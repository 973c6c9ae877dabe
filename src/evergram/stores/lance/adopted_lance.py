"""A table of somebody's own in LanceDB, with a column of vectors for each version, read where it
is.

A row belongs to the newest version whose column is not NULL in it. Every search reads all rows that
it may return and compares them here: LanceDB's own searches round their distances, and its indexes
miss rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import pyarrow as pa

from evergram.errors import DataError, StoreError
from evergram.stores.adopted_address import AdoptedNames, read_names, split_address
from evergram.stores.adopted_scores import best_by
from evergram.stores.adopted_store import NO_CHECKS, AdoptedStore, read_only
from evergram.stores.filters import Filter
from evergram.stores.lance.adopted_columns import check_columns, check_unique, own_condition
from evergram.stores.lance.lance_filter import limits, quoted, sql_of
from evergram.stores.lance.lance_folder import check_local, errors_as_store_errors
from evergram.stores.lance.lance_rows import conditions, vectors_of
from evergram.stores.lance.lance_store import lancedb_module
from evergram.stores.lance.table_state import TableState, read_state
from evergram.stores.store import ID_TYPES, Checks, Floats, Hits, Rows, Space, StoreView

T = TypeVar("T")

SCHEME = "lance-table:"
FORM = (
    "lance-table:DIR#table=TABLE&id=COLUMN&v0=COLUMN, with v1=COLUMN … for later versions, and if "
    "need be filter=COLUMN,COLUMN; write & in a name as %26, # as %23, a comma as %2C and % as %25"
)
# Rows that a search reads at once.
BLOCK = 8_192


class AdoptedLanceTable(AdoptedStore):
    kind: ClassVar[str] = "lance-table"

    def __init__(self, folder: Path, names: AdoptedNames) -> None:
        super().__init__()
        self._folder, self._names = folder, names
        self._table_name, self._id = names.others["table"], names.id or "id"
        self._filter: str | None = None
        self._closed = False
        # Of a view, the table at one moment; None where each call reads the latest.
        self._moment: Any = None
        # The latest state of the table that was read, and the table at it.
        self._pinned: dict[TableState, Any] = {}
        # The state whose ids and vectors were checked, shared by all views.
        self._compared: list[TableState] = []
        with errors_as_store_errors(self.address):
            # 0: every read looks whether others have written.
            database = lancedb_module().connect(folder, read_consistency_interval=timedelta(0))
            self._database = database
        self._latest = self._open()
        self._id_type: pa.DataType | None = None
        self._types()
        self._refuse_twice()
        self._compared.append(self._state())

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`. Raises: StoreError: it shall be created, and so written."""
        place, rest = split_address(address.removeprefix(SCHEME), FORM)
        check_local(place, cls.kind)
        names = read_names(rest, "table", FORM)
        if create is not None:
            raise read_only(f"{SCHEME}{place}#{names.fragment}")
        # A folder of its own would be made by LanceDB.
        if not Path(place).is_dir():
            raise DataError(f"There is no folder {place}; give the folder of your LanceDB tables.")
        return cls(Path(place), names)

    @property
    def address(self) -> str:
        return f"{SCHEME}{self._folder}#{self._names.fragment}"

    @property
    def place(self) -> str:
        return f"{SCHEME}{self._folder.resolve()}#{self._names.fragment}"

    @property
    def id_type(self) -> pa.DataType:
        return self._id_type

    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        with errors_as_store_errors(self.address):
            state = self._state()
            pinned = self._pinned.get(state)
            if pinned is None:
                pinned = self._open()
                pinned.checkout(state.version)
                self._pinned.clear()
                self._pinned[state] = pinned
        view = copy(self)
        view._moment = pinned
        return work(view)

    def require(self, version: int) -> None:
        """Check a version's rows, and the ids of all, again where the table was written, or made
        anew, since: a job of every night may have put another model's vectors into it."""
        state = self._state()
        if state not in self._compared:
            self._refuse_twice()
            self._checked.clear()
            self._compared[:] = [state]
        super().require(version)

    def where(self, conditions: Filter) -> Self:
        view = copy(self)
        view._filter = sql_of(conditions, self._types(), self._names.filters)
        if isinstance(conditions, str):
            try:
                view._query(view._filter, []).explain_plan()
            except Exception as error:
                sentence = " ".join(str(error).split())[:200].rstrip(".")
                raise DataError(
                    f"LanceDB does not take the filter {conditions[:80]!r}: {sentence}."
                ) from error
        return view

    def spaces(self) -> dict[int, Space]:
        types = self._types()
        return {
            version: Space(version, types[column].list_size, "")
            for version, column in self._names.vectors.items()
        }

    def filled(self) -> dict[int, Space]:
        spaces = self.spaces()
        with errors_as_store_errors(self.address):
            return {
                version: spaces[version]
                for version in spaces
                if len(self._query(self._own(version), []).limit(1).to_arrow())
            }

    def count(self) -> dict[int, int]:
        with errors_as_store_errors(self.address):
            counts = {v: self._table().count_rows(self._own(v)) for v in self.spaces()}
        return {version: rows for version, rows in counts.items() if rows}

    def close(self) -> None:
        self._closed = True
        self._pinned.clear()

    def column_rows(self, version: int, ids: pa.Array | None, size: int) -> Rows:
        column = self._names.vectors[version]
        present = f"{quoted(self._id)} is not null and {quoted(column)} is not null"
        blocks = [
            self._query(f"{present}{among}", [column]).limit(size).to_arrow()
            for among in self._among(ids)
        ]
        return self._block(version, pa.concat_tables([self._nothing(column), *blocks]))

    def nearest_by(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[Hits]:
        self.require(version)
        blocks = self._finite(self._blocks(version, ids, BLOCK))
        results = best_by(metric, queries, k, blocks, version, self._id_type)
        for hits in results:
            self.refuse_twice_in(hits.ids)
        return results

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        return [(h.ids, h.scores) for h in self.nearest_by("ip", version, queries, k, ids)]

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        blocks = []
        for version in self.spaces():
            of_version = [rows for rows in self._blocks(version, ids, BLOCK) if len(rows)]
            if of_version:
                self.require(version)
                self.refuse_twice_in(pa.concat_arrays([rows.ids for rows in of_version]))
            blocks += [(rows, NO_CHECKS) for rows in of_version]
        return blocks

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        self.require(version)
        for rows in self._blocks(version, None, size):
            yield rows, NO_CHECKS

    def _blocks(self, version: int, ids: pa.Array | None, size: int) -> Iterator[Rows]:
        """Yield the rows of a version, of some ids or of all, at most `size` at once."""
        column = self._names.vectors[version]
        self._types()
        with errors_as_store_errors(self.address):
            for among in self._among(ids):
                query = self._query(self._own(version) + among, [column])
                for batch in query.to_batches(size):
                    for start in range(0, batch.num_rows, size):
                        yield self._block(version, pa.table(batch.slice(start, size)))

    def _finite(self, blocks: Iterator[Rows]) -> Iterator[Rows]:
        for rows in blocks:
            self._verify(rows, NO_CHECKS)
            yield rows

    def _block(self, version: int, table: pa.Table) -> Rows:
        keys = table[self._id].combine_chunks().cast(self._id_type)
        self.refuse_twice_in(keys)
        return Rows(version, keys, vectors_of(table, self._names.vectors[version]))

    def _nothing(self, column: str) -> pa.Table:
        types = self._types()
        return pa.schema([(name, types[name]) for name in (self._id, column)]).empty_table()

    def _query(self, condition: str, columns: list[str]) -> Any:
        return self._table().search().where(condition).select([self._id, *columns])

    def _own(self, version: int) -> str:
        """Return the condition of the rows of a version that the filter leaves."""
        own = own_condition(version, self._id, self._names.vectors)
        return own if self._filter is None else f"{own} and {self._filter}"

    def _among(self, ids: pa.Array | None) -> Iterator[str]:
        """Yield conditions for some ids, or the one of all."""
        if ids is None:
            yield ""
            return
        if pa.types.is_integer(self._id_type):
            # LanceDB refuses a number that the column cannot hold.
            lowest, highest = limits(self._types()[self._id])
            kept = [key for key in ids.to_pylist() if lowest <= key <= highest]
            ids = pa.array(kept, self._id_type)
        for condition in conditions(ids, quoted(self._id)):
            yield f" and {condition}"

    def _types(self) -> dict[str, pa.DataType]:
        """Return the columns' types. Raises: StoreError: a column is not there, or of a type that
        it may not have, or ids are of another type than before."""
        with errors_as_store_errors(self.address):
            schema = self._table().schema
        types = dict(zip(schema.names, schema.types, strict=True))
        check_columns(types, self._id, self._names, self.address)
        id_type = ID_TYPES["int64" if pa.types.is_integer(types[self._id]) else "string"]
        if self._id_type is None:
            self._id_type = id_type
        self.check_id_type(id_type)
        return types

    def _table(self) -> Any:
        if self._closed:
            raise StoreError(f"{self.address} was closed; open it again.")
        if self._moment is not None:
            return self._moment
        return self._latest

    def _state(self) -> TableState:
        """Return the table's state, which every write changes, and a table made anew as well."""
        with errors_as_store_errors(self.address):
            return read_state(self._place_of_table, int(self._table().version))

    @property
    def _place_of_table(self) -> Path:
        return self._folder / f"{self._table_name}.lance"

    def _open(self) -> Any:
        with errors_as_store_errors(self.address):
            if not self._place_of_table.is_dir():
                tables = sorted(path.stem for path in self._folder.glob("*.lance"))
                raise DataError(
                    f"There is no table {self._table_name!r} in the folder {self._folder}; it has "
                    f"{', '.join(tables) or 'none'}."
                )
            return self._database.open_table(self._table_name)

    def _refuse_twice(self) -> None:
        """Refuse a table that has an id twice. Raises: StoreError."""
        with errors_as_store_errors(self.address):
            query = self._query(f"{quoted(self._id)} is not null", [])
            keys = query.to_arrow()[self._id].combine_chunks()
        check_unique(keys, self.address)
