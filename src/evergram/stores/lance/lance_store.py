"""A store in a folder of LanceDB: a table for each space, and a file that names them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil, isqrt
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa

from evergram.atomic_files import write_bytes
from evergram.errors import DataError, IntegrityError
from evergram.stores.index_codes import (
    FLOAT32,
    IndexCodes,
    looked_at,
    tell_apart,
    too_few_found,
)
from evergram.stores.lance.lance_folder import (
    best_of,
    block_of,
    check_local,
    conditions,
    drop_left,
    lancedb_module,
    ranked,
    refuse_others,
    vectors_of,
    write_lock,
)
from evergram.stores.rows import ID_TYPES, Checks, Floats, Rows, Space, joined_ids
from evergram.stores.store import (
    StoreView,
    checked_name,
    errors_as_store_errors,
    no_store,
    other_id_type,
    too_few,
    was_closed,
)
from evergram.stores.table_per_version import StoreRecord, TablePerVersionStore, parse_record

T = TypeVar("T")


# Every write adds a version of the table, and files; after so many they are put together, and
# those that nobody can be reading any more are removed.
COMPACTED_AFTER = 64
KEPT = timedelta(hours=1)

# A space smaller than this is searched exactly.
INDEXED_FROM = 1_000

# So often it is looked for a moment at which nobody writes, before writers are kept waiting.
LOOKS = 50


class LanceStore(TablePerVersionStore):
    kind: ClassVar[str] = "lance"

    def __init__(self, folder: Path, name: str, id_type: pa.DataType) -> None:
        self._folder = folder
        self._name = name
        self._file = folder / f"{name}.json"
        self._id_type = id_type
        self._lock = threading.Lock()
        self._tables: dict[int, Any] = {}
        # By space, the latest version of its table that was read, and the table at that version.
        self._pinned: dict[int, tuple[int, Any]] = {}
        # The record that a view of one moment has; None where each call reads the file.
        self._moment: StoreRecord | None = None
        self._closed = False
        # 0: every read looks whether another process has written.
        self._database = lancedb_module().connect(folder, read_consistency_interval=timedelta(0))

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`."""
        place, _, name = address.removeprefix("lance:").rpartition("#")
        if not place:
            raise DataError(f"{address!r} is not a LanceDB store address; give lance:DIR#NAME.")
        check_local(place, "lance")
        folder, shown = Path(place), f"lance:{place}#{checked_name(name)}"
        lancedb_module()
        record = folder / f"{name}.json"
        with errors_as_store_errors(shown):
            if create is not None and not record.exists():
                refuse_others(folder, name, shown)
                folder.mkdir(parents=True, exist_ok=True)
                with write_lock(folder, name, shown):
                    if not record.exists():
                        _write_record(record, StoreRecord(create, {}))
            if not record.exists():
                raise no_store(shown)
            kind = _read_record(record, shown).id_type
            if create is not None and kind != create:
                raise other_id_type(shown, kind, create)
            return cls(folder, name, ID_TYPES[kind])

    @property
    def address(self) -> str:
        return f"lance:{self._folder}#{self._name}"

    @property
    def place(self) -> str:
        return f"lance:{self._folder.resolve()}#{self._name}"

    def count(self) -> dict[int, int]:
        with errors_as_store_errors(self.address):
            counts = {version: self._table(version).count_rows() for version in self.spaces()}
        return {version: count for version, count in counts.items() if count}

    def build_index(self, codes: IndexCodes = FLOAT32) -> list[int]:
        """Build an index (IVF_FLAT, or IVF_SQ or IVF_RQ of codes) of every space of at least
        INDEXED_FROM rows. Raises: DataError: LanceDB has no such codes of these rows, or they do
        not find enough of the best."""
        spaces = self.spaces()
        counts = self.count()
        large = [spaces[v] for v, count in counts.items() if count >= INDEXED_FROM]
        few = {v: count for v, count in counts.items() if count < INDEXED_FROM}
        self.unindexed = {v: too_few(count, INDEXED_FROM) for v, count in few.items()}
        with errors_as_store_errors(self.address):
            check_codes(codes, large, self.address)
            for space in large:
                with self._writing():
                    table = self._table(space.version)
                    build_index(table, space, codes)
                    table.optimize(cleanup_older_than=KEPT)
        return [space.version for space in large]

    def close(self) -> None:
        self._closed = True
        self._tables.clear()
        self._pinned.clear()

    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
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
    def _writing(self) -> Iterator[None]:
        with self._lock, write_lock(self._folder, self._name, self.address):
            yield

    def _add_space(self, space: Space) -> None:
        from lancedb.index import BTree

        fields = {"id": self._id_type, "vector": pa.list_(pa.float32(), space.dim)}
        schema = pa.schema({**fields, "check": pa.uint32()})
        with self._writing(), errors_as_store_errors(self.address):
            record = self._record()
            if space.version not in record.spaces:
                name = f"{self._name}-v{space.version}"
                drop_left(self._database, name, schema, self.address)
                self._database.create_table(name, schema=schema).create_index("id", config=BTree())
                spaces = {**record.spaces, space.version: space}
                _write_record(self._file, replace(record, spaces=spaces))

    def _set_side(self, side: str) -> None:
        with self._writing(), errors_as_store_errors(self.address):
            record = self._record()
            if record.side is None:
                _write_record(self._file, replace(record, side=side))

    def _put(self, rows: Rows, checks: Checks) -> None:
        flat = pa.array(rows.vectors.reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(flat, rows.vectors.shape[1])
        written = pa.table({"id": rows.ids, "vector": vectors, "check": pa.array(checks)})
        with errors_as_store_errors(self.address):
            table = self._table(rows.version)
            merge = table.merge_insert("id").when_matched_update_all()
            merge.when_not_matched_insert_all().execute(written)
            self._compact(table)

    def _remove(self, version: int, ids: pa.Array) -> None:
        with errors_as_store_errors(self.address):
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
            for condition in conditions(ids):
                query = table.search().where(condition).limit(len(ids))
                table_of_rows = query.select(["id", "vector", "check"]).to_arrow()
                if len(table_of_rows) > len(table_of_rows["id"].unique()):
                    raise IntegrityError(
                        f"{self.address} has an id twice in version {version}: the list of removed "
                        "rows is damaged; restore the store."
                    )
                if len(table_of_rows):
                    yield block_of(version, table_of_rows)

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        with errors_as_store_errors(self.address):
            query = self._table(version).search().select(["id", "vector", "check"])
            for batch in query.to_batches(size):
                for start in range(0, batch.num_rows, size):
                    yield block_of(version, pa.table(batch.slice(start, size)))

    def _held(self, version: int, ids: pa.Array) -> pa.Array:
        held = []
        with errors_as_store_errors(self.address):
            table = self._table(version)
            for condition in conditions(ids if table.count_rows() else ids.slice(0, 0)):
                rows = table.search().where(condition).limit(len(ids)).select(["id"]).to_arrow()
                held.append(rows["id"].combine_chunks())
        return joined_ids(held, self._id_type)

    def _best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, *, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        if ids is not None:
            # Looking the rows up and comparing them is exact and needs no condition on a search.
            blocks = [rows for rows, _ in self._get(version, ids)]
            keys = joined_ids([rows.ids for rows in blocks], self._id_type)
            empty = np.zeros((0, queries.shape[1]), dtype=np.float32)
            vectors = np.concatenate([empty, *(b.vectors for b in blocks)])
            return [best_of(keys, vectors, query, k) for query in queries]
        with errors_as_store_errors(self.address):
            table = self._table(version)
            count = max(table.count_rows(), 1)
            codes = codes_of(table)
            return [nearest(table, query, k, codes, count) for query in queries]

    def _table(self, version: int) -> Any:
        if self._closed:
            raise was_closed(self.address)
        table = self._tables.get(version)
        if table is None:
            table = self._database.open_table(f"{self._name}-v{version}")
            self._tables[version] = table
        return table

    def _record(self) -> StoreRecord:
        if self._moment is not None:
            return self._moment
        with errors_as_store_errors(self.address):
            return _read_record(self._file, self.address)

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


def _read_record(file: Path, shown: str) -> StoreRecord:
    return parse_record(lambda: dict(json.loads(file.read_text())), f"{shown} ({file})")


def _write_record(file: Path, record: StoreRecord) -> None:
    """Replace a store's record, whole or not at all."""
    write_bytes(file, json.dumps(record.as_json(), indent=2).encode())


# Vectors are in √n lists, and a search looks into the nearest fifth of them, and into lists with
# so many rows for each that is wanted.
PROBED = 0.2
ROWS_A_RESULT = 20

# So many stored rows are the queries by which codes are measured; codes must find this share of the
# ten best.
SAMPLE, NEAREST, RECALL = 100, 10, 0.95

COLUMN, WHOLE = "vector", "vector_idx"


@dataclass(frozen=True)
class LanceForm:
    """An index of one kind of codes.

    Args:
        config: its class in `lancedb.index`.
        step: what the length of vectors must be a multiple of.
    """

    config: str
    step: int


# binary is RaBitQ (Gao and Long, SIGMOD 2024).
FORMS = {
    FLOAT32.kind: LanceForm("IvfFlat", 1),
    "int8": LanceForm("IvfSq", 1),
    "binary": LanceForm("IvfRq", 8),
}


def check_codes(codes: IndexCodes, spaces: Sequence[Space], shown: str) -> None:
    """Refuse codes that LanceDB cannot make of the vectors of some spaces.

    Args:
        shown: how errors name the store.
    Raises: DataError: it has no such codes, or not in the version that is installed, or not for
        vectors of this length.
    """
    import lancedb.index

    codes.check(list(FORMS), shown)
    form = FORMS[codes.kind]
    if not hasattr(lancedb.index, form.config):
        raise DataError(
            f"LanceDB {lancedb.__version__} is installed, which has no index of {codes.kind}: "
            "pip install --upgrade lancedb."
        )
    for space in spaces:
        if space.dim % form.step:
            raise DataError(
                f"Rows of version {space.version} in {shown} have {space.dim} numbers, and LanceDB "
                f"makes an index of {codes.kind} of a multiple of {form.step} only; take int8."
            )


def codes_of(table: Any) -> IndexCodes:
    """Return the codes of a table's index; FLOAT32 if it has one of whole vectors, or none."""
    several = [codes for index in table.list_indices() if (codes := _codes(index.name))]
    return max(several, key=lambda codes: codes.oversample, default=FLOAT32)


def build_index(table: Any, space: Space, codes: IndexCodes) -> None:
    """Build the index of a table by inner product, in place of the one that it has.

    Raises: DataError: codes do not find enough of the best; the index is then the one before.
    """
    import lancedb.index

    name = WHOLE if codes.whole else f"{COLUMN}_{codes.kind}_{codes.oversample}"
    make = getattr(lancedb.index, FORMS[codes.kind].config)
    config = make(distance_type="dot", num_partitions=isqrt(table.count_rows()))
    before = table.version
    table.create_index(COLUMN, config=config, replace=True, name=name)
    # If the builder is killed before, LanceDB has two to choose from, and either will do.
    for index in table.list_indices():
        if list(index.columns) == [COLUMN] and index.name != name:
            table.drop_index(index.name)
    if codes.whole:
        return
    share = _share_found(table, codes)
    if share < RECALL:
        table.restore(before)
        raise too_few_found(codes, share, RECALL, space.version)


def nearest(
    table: Any, query: Floats, k: int, codes: IndexCodes, count: int
) -> tuple[pa.Array, Floats]:
    """Return the ids [≤k] of the rows with the largest inner products, and the products.

    Args:
        query: [D].
        codes: of the table's index.
        count: the table's rows, at least 1.
    """
    lists = isqrt(count) + 1
    probes = ceil(max(PROBED * lists, lists * min(1.0, k * ROWS_A_RESULT / count)))
    if codes.whole:
        ids, scores, _ = _search(table, query, min(k, count), probes)
        return ranked(ids, scores, k)
    chosen = _by_codes(table, query, k, codes, count, probes)
    return _all_compared(table, query, k) if chosen is None else chosen


def _by_codes(
    table: Any, query: Floats, k: int, codes: IndexCodes, count: int, probes: int
) -> tuple[pa.Array, Floats] | None:
    """Return the best of the rows with the largest estimates; None where a row that was left out
    may be better."""
    for size in looked_at(k, codes.oversample):
        ids, scores, estimates = _search(table, query, min(size, count), probes)
        # Where the lists have fewer rows, none was left out.
        if len(ids) < size or tell_apart(scores, estimates, k):
            return ranked(ids, scores, k)
    return None


def _search(table: Any, query: Floats, size: int, probes: int) -> tuple[pa.Array, Floats, Floats]:
    """Return the rows that the index chooses: their ids, their products, and its estimates."""
    search = table.search(query).distance_type("dot").limit(size)
    hits = _columns(search.minimum_nprobes(probes).maximum_nprobes(0))
    # Its distance is 1 - score, which loses digits of a small score.
    return _ids(hits), vectors_of(hits) @ query, 1 - hits["_distance"].to_numpy()


def _all_compared(table: Any, query: Floats, k: int) -> tuple[pa.Array, Floats]:
    hits = _columns(table.search(query).distance_type("dot").bypass_vector_index().limit(k))
    return best_of(_ids(hits), vectors_of(hits), query, k)


def _columns(search: Any) -> pa.Table:
    return search.select(["id", COLUMN, "_distance"]).to_arrow()


def _ids(hits: pa.Table) -> pa.Array:
    return hits["id"].combine_chunks()


def _share_found(table: Any, codes: IndexCodes) -> float:
    """Return which share of the ten best codes find for stored rows as queries. A query that they
    do not answer counts as missed: all rows are compared for it."""
    count = table.count_rows()
    drawn = np.random.default_rng(0).permutation(count)[:SAMPLE]
    rows = table.take_offsets(sorted(drawn.tolist())).select([COLUMN]).to_arrow()
    matched, wanted = 0, 0
    for query in vectors_of(rows):
        _, best = _all_compared(table, query, NEAREST)
        answer = _by_codes(table, query, NEAREST, codes, count, isqrt(count) + 1)
        wanted += len(best)
        if answer is not None:
            # Rows with the same vector are as good as one another.
            matched += int((answer[1] >= best[-1]).sum())
    return matched / wanted


def _codes(name: str) -> IndexCodes | None:
    """Return the codes that the name of an index says; None if it says none."""
    for kind in FORMS:
        oversample = name.removeprefix(f"{COLUMN}_{kind}_")
        if oversample != name and oversample.isdecimal():
            return IndexCodes(kind, int(oversample))
    return None
