"""A store in a folder of LanceDB: a table for each space, and a file that names them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from datetime import timedelta
from math import ceil, isqrt
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
from filelock import Timeout

from evergram.atomic_files import file_lock, write_bytes
from evergram.errors import DataError, IntegrityError, StoreError, reason_and_remedy
from evergram.stores.rows import Checks, Floats, Rows, Space, best_first, products
from evergram.stores.store import (
    ReadableStore,
    errors_as_store_errors,
    no_store,
    not_ours,
    was_closed,
)
from evergram.stores.table_per_version import StoreRecord, TablePerVersionStore, parse_record

try:
    import lancedb
    import lancedb.index
except ImportError as error:
    raise DataError("A store in LanceDB needs lancedb: pip install 'evergram[lance]'.") from error

T = TypeVar("T")

# The most ids in one condition.
LOOKED_UP = 10_000
WAIT = 60.0  # seconds, for another process that writes
# Every write adds a version of the table, and files; after this many they are compacted, and
# versions older than KEPT are removed.
COMPACTED_AFTER = 64
KEPT = timedelta(hours=1)
# A space smaller than this is searched exactly.
INDEXED_FROM = 1_000
# Attempts to find a moment at which nobody writes, before writers are made to wait.
LOOKS = 50
# Vectors are in √n lists; a search looks into the nearest fifth of them, or into lists with this
# many rows for each result.
PROBED = 0.2
ROWS_A_RESULT = 20
COLUMN = "vector"


class LanceStore(TablePerVersionStore):
    kind: ClassVar[str] = "lance"
    form: ClassVar[str] = "lance:DIR#NAME"

    # The record that a view of one moment has; None where each call reads the file.
    _moment: StoreRecord | None = None

    @classmethod
    def _check_place(cls, place: str) -> None:
        check_local(place, "lance")

    def _connect(self, create: str | None) -> None:
        self._folder = Path(self._place)
        self._file = self._folder / f"{self._name}.json"
        self._lock = threading.Lock()
        self._tables: dict[int, Any] = {}
        # By space, the latest version of its table that was read, and the table at that version.
        self._pinned: dict[int, tuple[int, Any]] = {}
        self._closed = False
        if create is None and not self._file.exists():
            raise no_store(self.address)
        self._database = connected(self._folder, self.address)

    def build_index(self) -> list[int]:
        """Build an index (IVF_FLAT) of every space of at least INDEXED_FROM rows."""
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
        with errors_as_store_errors(self.address):
            for _ in range(LOOKS):
                record, versions = self._record(), self._table_versions()
                # Each only grows, so what is twice the same was so in between, all at once.
                if (record, versions) == (self._record(), self._table_versions()):
                    break
            else:
                with self._writing():
                    record, versions = self._record(), self._table_versions()
            view = copy(self)
            view._moment = record
            view._tables = {space: self._at(space, n) for space, n in versions.items()}
        return work(view)

    @contextmanager
    def _writing(self) -> Iterator[Self]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = file_lock(self._folder / f"{self._name}.lock", timeout=WAIT)
            with self._lock, lock, errors_as_store_errors(self.address):
                yield self
        except Timeout:
            raise StoreError(
                f"Another process has been writing {self.address} for {WAIT:.0f} s; try again "
                "later."
            ) from None
        except OSError as error:
            raise StoreError(
                f"{self.address} cannot be written: {reason_and_remedy(error)}."
            ) from error

    def _found(self) -> StoreRecord | None:
        if self._moment is not None:
            return self._moment
        if self._closed:
            raise was_closed(self.address)
        with errors_as_store_errors(self.address):
            if not self._file.exists():
                return None
            shown = f"{self.address} ({self._file})"
            return parse_record(lambda: dict(json.loads(self._file.read_text())), shown)

    def _save(self, record: StoreRecord) -> None:
        write_bytes(self._file, json.dumps(record.as_json(), indent=2).encode())

    def _refuse_others(self) -> None:
        for path in sorted(self._folder.glob(f"{self._name}-v*.lance")):
            raise not_ours(f"table {path.stem}", self.address)

    def _make_table(self, space: Space) -> None:
        name = f"{self._name}-v{space.version}"
        fields = {"id": self._id_type, COLUMN: pa.list_(pa.float32(), space.dim)}
        schema = pa.schema({**fields, "check": pa.uint32()})
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
        written = pa.table({"id": rows.ids, COLUMN: vectors, "check": pa.array(checks)})
        table = self._table(rows.version)
        merge = table.merge_insert("id").when_matched_update_all()
        merge.when_not_matched_insert_all().execute(written)
        self._compact(table)

    def _remove(self, version: int, ids: pa.Array) -> None:
        table = self._table(version)
        if not table.count_rows():
            return
        for condition in conditions(ids):
            # A deletion of nothing would still be a version of the table.
            if table.count_rows(condition):
                table.delete(condition)
                self._compact(table)

    def _get(self, version: int, ids: pa.Array) -> Iterator[tuple[Rows, Checks]]:
        with errors_as_store_errors(self.address):
            table = self._table(version)
            for condition in conditions(ids if table.count_rows() else ids.slice(0, 0)):
                query = table.search().where(condition).limit(len(ids))
                found = query.select(["id", COLUMN, "check"]).to_arrow()
                if len(found) > len(found["id"].unique()):
                    raise IntegrityError(
                        f"{self.address} has an id twice in version {version}: the list of removed "
                        "rows is damaged; restore the store."
                    )
                if len(found):
                    yield _block_of(version, found)

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        with errors_as_store_errors(self.address):
            query = self._table(version).search().select(["id", COLUMN, "check"])
            for batch in query.to_batches(size):
                for start in range(0, batch.num_rows, size):
                    yield _block_of(version, pa.table(batch.slice(start, size)))

    def _count(self, version: int) -> int:
        with errors_as_store_errors(self.address):
            return int(self._table(version).count_rows())

    def _best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        if ids is not None:
            return self._best_among(version, queries, k, ids)
        with errors_as_store_errors(self.address):
            table = self._table(version)
            count = max(table.count_rows(), 1)
            return [_nearest(table, query, k, count) for query in queries]

    def _table(self, version: int) -> Any:
        if self._closed:
            raise was_closed(self.address)
        table = self._tables.get(version)
        if table is None:
            table = self._database.open_table(f"{self._name}-v{version}")
            self._tables[version] = table
        return table

    def _table_versions(self) -> dict[int, int]:
        """Return the version of each space's table, to which every write adds one."""
        return {version: int(self._table(version).version) for version in self.spaces()}

    def _at(self, space: int, version: int) -> Any:
        """Return the table of a space at a version of the table, opened once."""
        known = self._pinned.get(space)
        if known is not None and known[0] == version:
            return known[1]
        table = self._database.open_table(f"{self._name}-v{space}")
        table.checkout(version)
        self._pinned[space] = version, table
        return table

    def _compact(self, table: Any) -> None:
        if table.version % COMPACTED_AFTER == 0:
            # The rows are written; where this fails, say for want of room, it is done next time.
            with suppress(Exception):
                table.optimize(cleanup_older_than=KEPT)


def _nearest(table: Any, query: Floats, k: int, count: int) -> tuple[pa.Array, Floats]:
    """Return the ids [≤k] of the rows with the largest inner products with a query, and these."""
    lists = isqrt(count) + 1
    probes = ceil(max(PROBED * lists, lists * min(1.0, k * ROWS_A_RESULT / count)))
    search = table.search(query).distance_type("dot").limit(min(k, count))
    search = search.minimum_nprobes(probes).maximum_nprobes(0)
    hits = search.select(["id", COLUMN, "_distance"]).to_arrow()
    # Its distance is 1 - score, which loses digits of a small score.
    return best_first(hits["id"].combine_chunks(), products(query[None], vectors_of(hits))[0], k)


# `adopted_lance` uses these too.


def check_local(place: str, kind: str) -> None:
    """Refuse an address of a `kind` that is no folder of this machine. Raises: DataError; the place
    is not repeated, as there may be a key in it."""
    scheme, colon, _ = place.partition("://")
    if colon:
        raise DataError(
            f"A store {kind}: is in a folder on a disk of this machine, and its address has "
            f"{scheme[:20]}:// in place of one; buckets and LanceDB's cloud are not read. Copy the "
            f"tables to a disk and give {kind}:DIR#…, or use PostgreSQL or Qdrant."
        )


def connected(folder: Path, shown: str) -> Any:
    """Return the database in a folder."""
    with errors_as_store_errors(shown):
        # 0: every read looks whether another process has written.
        return lancedb.connect(folder, read_consistency_interval=timedelta(0))


def conditions(ids: pa.Array, column: str = "id") -> Iterator[str]:
    """Yield conditions `id in (…)` in SQL, each for as many ids as one should have."""
    for start in range(0, len(ids), LOOKED_UP):
        yield f"{column} in ({', '.join(map(literal, ids.slice(start, LOOKED_UP).to_pylist()))})"


def literal(key: int | str) -> str:
    """Return an id as SQL writes it."""
    if isinstance(key, str):
        return "'" + key.replace("'", "''") + "'"
    # The smallest int64 is read as minus a number that is too large.
    return f"cast('{key}' as bigint)" if key == -(2**63) else str(key)


def vectors_of(table: pa.Table, name: str = COLUMN) -> Floats:
    """Return the vectors of a column without a NULL, [n, D]; a NULL in a vector is NaN."""
    column = table[name].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        vectors: Floats = flat.astype(np.float32, copy=False)
    return vectors.reshape(len(column), column.type.list_size)


def _block_of(version: int, table: pa.Table) -> tuple[Rows, Checks]:
    return Rows(version, table["id"].combine_chunks(), vectors_of(table)), table["check"].to_numpy()
