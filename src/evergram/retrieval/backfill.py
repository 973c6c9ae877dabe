"""Refresh a store's older rows to a newer version: worst first, in batches, resumable. In the
user's own table, this fills the version's column. Also fills several stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from filelock import Timeout
from pydantic import (
    BaseModel,
    ConfigDict,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from evergram.atomic_files import file_lock, make_folder, remove_folder, replacing, write_text
from evergram.errors import EvergramError, IntegrityError, LineageError, reason_and_remedy
from evergram.lineage.lineage import Lineage
from evergram.lineage.locks import check_tree, file_mode
from evergram.retrieval.fill import Progress, check_store, fill, id_type, refuse_shared, space_of
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.adopted_store import AdoptedStore, FillableTable, not_changed
from evergram.stores.open_store import open_store
from evergram.stores.store import (
    ID_TYPES,
    Floats,
    ReadableStore,
    Rows,
    Store,
    joined_ids,
    places_among,
)
from evergram.validation import sentence_of

# Called with the side, the version, rows written and total rows.
SideProgress = Callable[[str, int, int, int], None]
BATCH = 10_000
# Error of unreadable rows (withdrawn version, or no vector), which are refreshed first.
UNREAD = 1e9
# A backfill has stalled if it wrote nothing for this many seconds.
PATIENCE = 600.0
# The state of a backfill whose files are damaged.
UNREADABLE = "cannot be read; plan again"
RECORD, ORDER, JOURNAL, SOURCE = "backfill.json", "order.sealed", "journal", "source"
_HASH = 32

State = Literal["planned", "under way", "paused", "applied", "rolling back", "rolled back"]


@dataclass(frozen=True)
class BackfillStatus:
    """The progress of a backfill.

    Args:
        target: the version that rows are refreshed to.
        rows: number of rows to refresh.
        refreshed: number of rows refreshed so far.
        remaining: summed error of the waiting rows, as a share of that of all `rows`.
        held: current number of rows by version.
    """

    state: State
    side: str
    store: str
    target: int
    rows: int
    refreshed: int
    remaining: float
    held: dict[int, int]


class BackfillRecord(BaseModel):
    """State of a backfill, in a file that is replaced after each batch. `at` is the time of
    writing. "paused" means that `apply` stopped after the requested number of rows."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    side: str
    store: str
    target: NonNegativeInt
    fingerprint: str
    batch: PositiveInt
    rows: NonNegativeInt
    state: State = "planned"
    done: NonNegativeInt = 0
    at: FiniteFloat = 0.0

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise IntegrityError(
                f"{path} is damaged: {sentence_of(error, cls)} Remove {path.parent} and plan "
                "again; rows that were refreshed stay so."
            ) from error
        except OSError as error:
            raise IntegrityError(
                f"{path} cannot be read: {reason_and_remedy(error, 'the backfill is as it was')}."
            ) from error


@dataclass(frozen=True)
class BackfillProgress:
    """The progress of a backfill according to its files, and the seconds since they were last
    written. The state is one of `State`, "stalled" (idle for `PATIENCE`) or `UNREADABLE`."""

    side: str
    version: int
    done: int
    total: int
    state: str
    idle: float | None = None


def backfill_progress(lineage: Path, now: float | None = None) -> list[BackfillProgress]:
    """Return the latest backfill of each store in a lineage's folder, in any state."""
    found = []
    for path in sorted((lineage / "backfills").glob(f"*/{RECORD}")):
        try:
            record = BackfillRecord.read(path)
        except IntegrityError:
            side = path.parent.name.rpartition("-")[0]
            found.append(BackfillProgress(side, 0, 0, 0, UNREADABLE))
            continue
        idle, state = (time.time() if now is None else now) - record.at, str(record.state)
        # A time in the future, from another machine's clock, counts as stalled, too.
        if state == "under way" and abs(idle) > PATIENCE:
            state = "stalled"
        progress = record.side, record.target, record.done, record.rows, state, idle
        found.append(BackfillProgress(*progress))
    return found


def backfill_order(
    lineage: Lineage, store: ReadableStore, source: ReadableStore, target: int
) -> pa.Table:
    """Return `id` and `error`, worst first, of a store's rows that are in `source`."""
    maps = VersionMaps(lineage)
    ids, errors = [pa.array([], store.id_type)], [np.zeros(0)]

    def with_new(old: pa.Array) -> tuple[npt.NDArray[np.bool_], Floats]:
        """Return a mask of the ids that have a new row, and these rows."""
        parts = source.fetch(old)
        mask, places = places_among(old, joined_ids([new.ids for new in parts], store.id_type))
        width = lineage.manifest(target).dim
        vectors = [np.zeros((0, width), np.float32), *(new.vectors[:, :width] for new in parts)]
        return mask, np.concatenate(vectors)[places]

    for bare in store.bare_ids() if isinstance(store, FillableTable) else ():
        ids.append(bare.filter(pa.array(with_new(bare)[0])))
        errors.append(np.full(len(ids[-1]), UNREAD))
    for version in sorted(store.count().keys() - {target}):
        if version > target and isinstance(store, AdoptedStore):
            continue  # A table row is read by its newest vector.
        for rows in store.scan(version):
            mask, new = with_new(rows.ids)
            ids.append(rows.ids.filter(pa.array(mask)))
            if version in lineage.withdrawn:
                errors.append(np.full(len(ids[-1]), UNREAD))
                continue
            old = rows.vectors[mask, : lineage.manifest(version).dim]
            errors.append(reading_errors(maps, old, new, version, target))
    every = np.concatenate(errors)
    order = np.argsort(-every, kind="stable")
    return pa.table({"id": pa.concat_arrays(ids).take(pa.array(order)), "error": every[order]})


def reading_errors(
    maps: VersionMaps, old: Floats, new: Floats, version: int, target: int
) -> npt.NDArray[np.float64]:
    """Return the distance [n] of rows of a version [n, D_v], read as `target`, from their new
    vectors [n, D]; `UNREAD` if they cannot be read."""
    try:
        read = maps.rows(np.ascontiguousarray(old), version, target)
    except LineageError:
        return np.full(len(old), UNREAD)
    return np.asarray(np.linalg.norm(read.astype(np.float64) - new, axis=1))


class Backfill:
    """Refreshes the store of a side to production's version.

    If `apply` is killed, the next one resumes: each batch's old rows are saved to a journal before
    the new ones are written, and writing a batch twice does no harm. The journals are kept for
    `rollback` until the next plan.

    In the user's own table it fills the empty cells of the version's column, and keeps their ids in
    a journal in the same database.

    Raises: IntegrityError: the store was filled from another lineage or with another side.
    """

    def __init__(self, lineage: Lineage, store: ReadableStore, side: str) -> None:
        if not isinstance(store, Store | FillableTable):
            raise not_changed(store.address)
        check_store(lineage, store, side, to_write=True)
        self.lineage: Lineage = lineage
        self.store: Store | FillableTable = store
        self.side: str = side
        key = sha256(store.place.encode()).hexdigest()[:12]
        self.folder: Path = lineage.path / "backfills" / f"{side}-{key}"
        check_tree(lineage.path, self.folder)
        self._mode = file_mode(lineage.path)

    def plan(self, batch: int = BATCH, *, target: int | None = None) -> BackfillStatus:
        """Write the order in which rows will be refreshed, the largest error first: the distance of
        a row, read as the target, from its new vector.

        Args:
            target: the version to refresh rows to; default: production.
        Raises: LineageError: another backfill of this store is unfinished.
        """
        target = self.lineage.production if target is None else target
        if isinstance(self.store, FillableTable):
            self.store.check_column(target, self.lineage.manifest(target).dim)
        with self._locked():
            if (self.folder / RECORD).exists():
                earlier = BackfillRecord.read(self.folder / RECORD)
                # An unfinished backfill to a version that left production is superseded.
                going_on = earlier.state in ("under way", "paused")
                going_on = going_on and earlier.target in (self.lineage.production, target)
                if going_on or earlier.state == "rolling back":
                    how = "'apply', or undo it by 'rollback'" if going_on else "'rollback'"
                    raise LineageError(f"A backfill is {earlier.state}; first finish it by {how}.")
            # Remove old journals, which would be taken for those of this backfill.
            remove_folder(self.folder)
            if self.folder.exists():
                raise LineageError(
                    f"{self.folder}, of an earlier backfill, cannot be removed; remove it, and "
                    "plan again."
                )
            for folder in (self.folder, self.folder / JOURNAL):
                make_folder(folder, self._mode)
            kind = next(name for name, kind in ID_TYPES.items() if kind == self.store.id_type)
            if isinstance(self.store, Store):
                self.store.remove_superseded()
            with open_store(str(self.folder / SOURCE), create=kind) as source:
                if isinstance(self.store, FillableTable):
                    source.add_space(space_of(self.lineage, target, norms=False))
                fill(self.lineage, source, self.side, target)
                order = backfill_order(self.lineage, self.store, source, target)
            write_table(self.folder / ORDER, order, self._mode)
            self._write(
                BackfillRecord(
                    side=self.side,
                    store=self.store.address,
                    target=target,
                    fingerprint=self.lineage.manifest(target).fingerprint,
                    batch=batch,
                    rows=len(order),
                )
            )
        return self.status()

    def fill(self, target: int, progress: Progress | None = None) -> int:
        """Finish a started backfill, then plan and apply; return the number of planned rows."""
        with suppress(LineageError):
            if self._record().target == target and self._record().state in ("under way", "paused"):
                self.apply(progress=progress)
        self.plan(target=target)
        return self.apply(progress=progress).rows

    def apply(self, rows: int | None = None, progress: Progress | None = None) -> BackfillStatus:
        """Refresh rows in the planned order.

        Args:
            rows: stop after this many more; default: all.
            progress: called with rows done and total rows, before the first batch and after each.
        Raises: LineageError: nothing is planned, or a rollback was started, or the version was
            withdrawn or is no longer in production.
        """
        self._record()  # fail before making a lock
        with self._locked():
            record = self._record()
            if record.state in ("rolling back", "rolled back"):
                raise LineageError(
                    f"This backfill is {record.state}; finish it by 'rollback', and plan another."
                )
            self.lineage.manifest(record.target)  # refuses a withdrawn version
            # A table may get vectors of a later version before it is promoted.
            ahead = isinstance(self.store, AdoptedStore) and record.target > self.lineage.production
            if record.target != self.lineage.production and not ahead:
                raise LineageError(
                    f"This backfill leads to version {record.target}, and version "
                    f"{self.lineage.production} is in production since; plan another, or undo this "
                    "one by 'rollback'."
                )
            order = read_table(self.folder / ORDER)["id"].combine_chunks()
            self._begin(record)
            done = record.done
            last = len(order) if rows is None else min(len(order), done + rows)
            if progress is not None:
                progress(done, len(order))
            with self._source() as source:
                while done < last:
                    record = self._write(record, state="under way", done=done)
                    ids = order.slice(done, min(record.batch, last - done))
                    self._refresh(source, record.target, ids, f"{done:012d}")
                    done += len(ids)
                    if progress is not None:
                        progress(done, len(order))
            state = "applied" if done == len(order) else "paused" if done else record.state
            self._write(record, state=state, done=done)
        return self.status()

    def rollback(self, progress: Progress | None = None) -> BackfillStatus:
        """Restore all refreshed rows, except those that others have overwritten since.

        Args:
            progress: called with batches done and total batches.
        Raises: LineageError: nothing is planned.
        """
        self._record()  # fail before making a lock
        with self._locked():
            record = self._record()
            if isinstance(self.store, FillableTable):
                self._empty_cells(self.store, record, progress)
                return self.status()
            # Newest first: once a row that others wrote after a kill is restored, it no longer
            # equals what `apply` wrote, and older journals leave it alone.
            journals = sorted((self.folder / JOURNAL).glob("*.sealed"), reverse=True)
            with self._source() as source:
                for number, path in enumerate(journals, start=1):
                    for old in journal_rows(path):
                        mask = self._ours(source, record.target, old.ids)
                        if not mask.any():
                            continue
                        if record.state != "rolling back":
                            # Blocks `apply` and `plan` until all rows are restored.
                            record = self._write(record, state="rolling back")
                        ids = old.ids.filter(pa.array(mask))
                        self.store.upsert(Rows(old.version, ids, old.vectors[mask]))
                    if progress is not None:
                        progress(number, len(journals))
            self._write(record, state="rolled back", done=0)
        return self.status()

    def status(self) -> BackfillStatus:
        """Return the progress. Raises: LineageError: nothing is planned."""
        record = self._record()
        errors = read_table(self.folder / ORDER)["error"].to_numpy()
        total = float(errors.sum())
        return BackfillStatus(
            *(record.state, record.side, self.store.address, record.target, record.rows),
            refreshed=record.done,
            remaining=float(errors[record.done :].sum()) / total if total else 0.0,
            held=self.store.count(),
        )

    def _begin(self, record: BackfillRecord) -> None:
        target = record.target
        if isinstance(self.store, FillableTable):
            self.store.begin_column(target, self.lineage.manifest(target).dim)
            return
        if record.state != "planned":
            # After a kill, outdated rows of any earlier batch may be left, hidden from `_refresh`.
            self.store.remove_superseded()
        self.store.take_side(self.side)
        self.store.add_space(self.store.spaces().get(target, space_of(self.lineage, target)))

    def _empty_cells(
        self, table: FillableTable, record: BackfillRecord, progress: Progress | None
    ) -> None:
        entries = table.journal(record.target)
        record = self._write(record, state="rolling back")
        with self._source() as source:
            for number, (entry, ids) in enumerate(entries, start=1):
                if parts := source.fetch(ids):
                    keys = joined_ids([rows.ids for rows in parts], table.id_type)
                    vectors = np.concatenate([rows.vectors for rows in parts])
                    table.clear_cells(entry, Rows(record.target, keys, vectors))
                if progress is not None:
                    progress(number, len(entries))
        table.drop_column(record.target)
        self._write(record, state="rolled back", done=0)

    def _refresh(self, source: ReadableStore, target: int, ids: pa.Array, name: str) -> None:
        """Write a batch's old rows to a journal, then the new ones to the store."""
        if isinstance(self.store, FillableTable):
            for rows in source.fetch(ids):
                self.store.write_cells(rows)
            return
        old = [rows for rows in self.store.fetch(ids) if rows.version != target]
        if not old:
            return
        # After a kill, rows that others have written since go to an additional journal.
        journals = sorted((self.folder / JOURNAL).glob(f"{name}*"))
        kept = {key for path in journals for rows in journal_rows(path) for key in _keys(rows)}
        fresh = []
        for rows in old:
            columns = {
                "id": rows.ids,
                "version": pa.array(np.full(len(rows), rows.version), pa.int64()),
                # A variable-size list, because dims differ by version.
                "vector": pa.array(list(rows.vectors), pa.list_(pa.float32())),
            }
            fresh.append(pa.table(columns).filter([key not in kept for key in _keys(rows)]))
        if sum(map(len, fresh)):
            path = self.folder / JOURNAL / f"{name}.{len(journals):06d}.sealed"
            write_table(path, pa.concat_tables(fresh), self._mode)
        width = self.store.spaces()[target].dim
        for rows in source.fetch(joined_ids([rows.ids for rows in old], self.store.id_type)):
            if rows.version == target:
                vectors = np.ascontiguousarray(rows.vectors[:, :width])
                self.store.upsert(Rows(target, rows.ids, vectors))

    def _ours(self, source: ReadableStore, target: int, ids: pa.Array) -> npt.NDArray[np.bool_]:
        """Return a mask [n]: True where the stored row is the one that `apply` wrote."""
        own = []
        for stored in self.store.fetch(ids):
            if stored.version != target:
                continue
            for written in source.fetch(stored.ids):
                known, places = places_among(stored.ids, written.ids)
                wrote = written.vectors[places, : stored.vectors.shape[1]]
                same = (stored.vectors[known] == wrote).all(axis=1)
                own.append(stored.ids.filter(pa.array(known)).filter(pa.array(same)))
        return places_among(ids, joined_ids(own, self.store.id_type))[0]

    def _source(self) -> ReadableStore:
        """Return the store of new rows that the plan filled. Raises: IntegrityError."""
        try:
            return open_store(str(self.folder / SOURCE))
        except EvergramError as error:
            raise IntegrityError(
                f"The new rows of the backfill cannot be read ({error}) Remove {self.folder} and "
                "plan again; rows that were refreshed stay so."
            ) from error

    def _record(self) -> BackfillRecord:
        """Raises: LineageError: nothing is planned. IntegrityError: the record is damaged or its
        fingerprint differs from the lineage's."""
        path = self.folder / RECORD
        if not path.exists():
            raise LineageError(
                f"No backfill of {self.store.address} is planned; 'evergram store backfill plan' "
                "makes one."
            )
        record = BackfillRecord.read(path)
        # Rows can be restored even if the version was withdrawn since.
        withdrawal = self.lineage.withdrawn.get(record.target)
        version = self.lineage.manifest(record.target) if withdrawal is None else withdrawal
        if record.fingerprint != version.fingerprint:
            raise IntegrityError(
                f"{path} was made for another version {record.target}; plan again."
            )
        return record

    def _write(self, record: BackfillRecord, **changes: Any) -> BackfillRecord:
        """Save the record with these changes and the current time, which shows stalls."""
        changed = record.model_copy(update={**changes, "at": time.time()})
        write_text(self.folder / RECORD, changed.model_dump_json(indent=2), self._mode)
        return changed

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_folder(self.folder.parent, self._mode)
        try:
            with file_lock(self.folder.with_name(f".{self.folder.name}.lock"), timeout=0):
                yield
        except Timeout:
            raise LineageError(
                f"Another process is refreshing {self.store.address}; wait for it and try again."
            ) from None
        except OSError as error:
            raise LineageError(
                f"{self.folder} cannot be written: "
                f"{reason_and_remedy(error, 'the backfill is as it was')}; 'apply' goes on from "
                "there."
            ) from error


@dataclass(frozen=True)
class FilledStore:
    """A filled store: the number of rows written, and of rows `held` by version."""

    store: str
    side: str
    rows: int
    held: dict[int, int]


def fill_stores(
    lineage: Lineage,
    addresses: Mapping[str, str],
    *,
    version: int | str | None = None,
    index: bool = False,
    progress: SideProgress | None = None,
) -> list[FilledStore]:
    """Write all embeddings of a version to stores, creating missing ones. The user's own table gets
    the vectors that its rows lack, as a `Backfill`.

    All stores are checked before the first row is written. A new snapshot that stays empty is
    removed.

    Args:
        addresses: side to address.
        version: number or label of a version with stored embeddings; default: production.
        index: build each store's native index afterwards.
        progress: called with the side, the version, rows written and total rows.
    Raises: LineageError: unknown side. DataError: two sides share a store. Others as `fill`.
    """
    number = lineage.resolve(version)
    kinds = {side: id_type(lineage, side, number) for side in addresses}
    folders = {side: Path(a.removeprefix("snapshot:")) for side, a in addresses.items()}
    absent = {side for side, folder in folders.items() if not folder.exists()}
    stores: dict[str, ReadableStore] = {}
    filled = []
    with ExitStack() as opened:
        try:
            for side, address in addresses.items():
                stores[side] = opened.enter_context(open_store(address, create=kinds[side]))
            refuse_shared({side: store.place for side, store in stores.items()})
            for side, store in stores.items():
                if index and not isinstance(store, Store):
                    raise not_changed(store.address)
                check_store(lineage, store, side, to_write=True)
            for side, store in stores.items():
                of_side = None if progress is None else partial(progress, side, number)
                if isinstance(store, Store):
                    rows = fill(lineage, store, side, number, progress=of_side)
                else:
                    rows = Backfill(lineage, store, side).fill(number, of_side)
                if index and isinstance(store, Store):
                    store.build_index()
                filled.append(FilledStore(store.address, side, rows, store.count()))
        except BaseException:
            for side in absent & stores.keys():
                if stores[side].kind == "snapshot" and not any(stores[side].count().values()):
                    remove_folder(folders[side])
            raise
    return filled


def write_table(path: Path, table: pa.Table, mode: int) -> None:
    """Atomically write a table as its SHA-256 followed by an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue()
    with replacing(path, mode) as file:
        file.write(sha256(content).digest())
        file.write(content)


def read_table(path: Path) -> pa.Table:
    """Read a table from `write_table`. The hash is checked before parsing, because damaged Arrow
    files can crash the process. Raises: IntegrityError: it is missing or damaged."""
    try:
        with pa.memory_map(str(path)) as file:
            whole = file.read_buffer()
        if whole[:_HASH].to_pybytes() != sha256(whole[_HASH:]).digest():
            raise pa.ArrowInvalid("it is not what was written")
        return pa.ipc.open_file(whole[_HASH:]).read_all()
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(
            f"{path} cannot be read ({error}), and no row is taken from it. Rows that were "
            "refreshed stay so; plan again."
        ) from error


def journal_rows(path: Path) -> Iterator[Rows]:
    """Yield a journal's rows by version. Raises: IntegrityError: it is missing or damaged."""
    table = read_table(path)
    versions = table["version"].to_numpy()
    for version in sorted(set(versions.tolist())):
        mine = table.filter(pa.array(versions == version))
        vectors = np.stack([np.asarray(v, dtype=np.float32) for v in mine["vector"].to_numpy()])
        yield Rows(int(version), mine["id"].combine_chunks(), vectors)


def _keys(rows: Rows) -> list[tuple[int, int | str, bytes]]:
    pairs = zip(rows.ids.to_pylist(), rows.vectors, strict=True)
    return [(rows.version, id_, vector.tobytes()) for id_, vector in pairs]
