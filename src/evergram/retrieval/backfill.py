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
from typing import Any, ClassVar, Literal, Self, cast

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

from evergram.atomic_files import file_lock, make_folder, remove_folder, write_text
from evergram.errors import EvergramError, IntegrityError, LineageError, reason_and_remedy
from evergram.lineage.lineage import Lineage
from evergram.lineage.locks import check_tree, file_mode
from evergram.retrieval.fill import Progress, check_store, fill, id_type, refuse_shared, space_of
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.open_store import open_store
from evergram.stores.store import (
    BATCH,
    Floats,
    ReadableStore,
    Rows,
    Space,
    Store,
    joined_ids,
    joined_rows,
    places_among,
)
from evergram.validation import sentence_of

# Called with the side, the version, rows written and total rows.
SideProgress = Callable[[str, int, int, int], None]
# Error of unreadable rows (withdrawn version, or no vector), which are refreshed first.
UNREAD = 1e9
# A backfill has stalled if it wrote nothing for this many seconds.
PATIENCE = 600.0
# The state of a backfill whose files are damaged.
UNREADABLE = "cannot be read; plan again"
# The record; and snapshots of the planned rows' errors, of old rows, and of new rows.
RECORD, ORDER, SAVED, SOURCE = "backfill.json", "order", "saved", "source"

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
    writing. "paused" means that `apply` stopped after the requested number of rows, or that it was
    interrupted. `ahead` means that the target was planned before it was in production."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    side: str
    store: str
    target: NonNegativeInt
    fingerprint: str
    batch: PositiveInt
    rows: NonNegativeInt
    ahead: bool = False
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
        idle = (time.time() if now is None else now) - record.at
        # A time in the future, from another machine's clock, counts as stalled, too.
        stalled = record.state == "under way" and abs(idle) > PATIENCE
        facts = record.side, record.target, record.done, record.rows
        found.append(BackfillProgress(*facts, "stalled" if stalled else record.state, idle))
    return found


def planned_rows(
    lineage: Lineage, store: ReadableStore, source: ReadableStore, target: int
) -> Rows:
    """Return a store's rows to refresh, those that are in `source`; the vector of each, [1], is its
    error."""
    maps = VersionMaps(lineage)
    ids, errors = [pa.array([], store.id_type)], [np.zeros(0)]

    def with_new(old: pa.Array) -> tuple[npt.NDArray[np.bool_], Floats]:
        """Return a mask of the ids that have a new row, and these rows."""
        parts = source.fetch(old)
        mask, places = places_among(old, joined_ids([new.ids for new in parts], store.id_type))
        width = lineage.manifest(target).dim
        vectors = [np.zeros((0, width), np.float32), *(new.vectors[:, :width] for new in parts)]
        return mask, np.concatenate(vectors)[places]

    for bare in store.bare_ids():
        ids.append(bare.filter(pa.array(with_new(bare)[0])))
        errors.append(np.full(len(ids[-1]), UNREAD))
    for version in store.stale(target):
        for rows in store.scan(version):
            mask, new = with_new(rows.ids)
            ids.append(rows.ids.filter(pa.array(mask)))
            if version in lineage.withdrawn:
                errors.append(np.full(len(ids[-1]), UNREAD))
                continue
            old = rows.vectors[mask, : lineage.manifest(version).dim]
            errors.append(reading_errors(maps, old, new, version, target))
    return Rows(0, pa.concat_arrays(ids), np.concatenate(errors).astype(np.float32)[:, None])


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
    `rollback` until the next plan. In the user's own table it fills the empty cells of a column,
    and keeps their ids in a journal in the same database.

    Raises: IntegrityError: the store was filled from another lineage or with another side.
    """

    def __init__(self, lineage: Lineage, store: ReadableStore, side: str) -> None:
        check_store(lineage, store, side, to_write=True)
        self.lineage: Lineage = lineage
        self.store: Store | AdoptedStore = cast(Any, store)  # each store is one of them
        self.side: str = side
        key = sha256(store.absolute_address.encode()).hexdigest()[:12]
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
        plain, with_norms = (space_of(self.lineage, target, norms=n) for n in (False, True))
        space = self.store.space_to_fill(plain, with_norms)
        with self._locked():
            if (self.folder / RECORD).exists():
                earlier = BackfillRecord.read(self.folder / RECORD)
                # An unfinished backfill to a version that left production is superseded.
                wanted = earlier.target in (self.lineage.production, target)
                going_on = wanted and earlier.state in ("under way", "paused")
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
            make_folder(self.folder, self._mode)
            with self._made(SOURCE) as source:
                source.add_space(space)
                fill(self.lineage, source, self.side, target)
                rows = planned_rows(self.lineage, self.store, source, target)
            with self._made(ORDER) as order:
                order.load(Space(0, 1, ""), [rows])
            self._write(
                BackfillRecord(
                    side=self.side,
                    store=self.store.address,
                    target=target,
                    fingerprint=self.lineage.manifest(target).fingerprint,
                    batch=batch,
                    rows=len(rows),
                    ahead=target > self.lineage.production,
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
            ahead = record.ahead and record.target > self.lineage.production
            if record.target != self.lineage.production and not ahead:
                raise LineageError(
                    f"This backfill leads to version {record.target}, and version "
                    f"{self.lineage.production} is in production since; plan another, or undo this "
                    "one by 'rollback'."
                )
            order, _ = self.order()
            # If a column was dropped since, nothing is done.
            done = record.done if record.target in self.store.spaces() else 0
            last = len(order) if rows is None else min(len(order), done + rows)
            if progress is not None:
                progress(done, len(order))
            try:
                with self._opened(SOURCE) as source, self._made(SAVED) as saved:
                    self.store.begin(source.spaces()[record.target], self.side)
                    while done < last:
                        record = self._write(record, state="under way", done=done)
                        ids = order.slice(done, min(record.batch, last - done))
                        self.store.refresh(joined_rows(source.fetch(ids)), saved)
                        done += len(ids)
                        if progress is not None:
                            progress(done, len(order))
            except KeyboardInterrupt:
                self._write(record, state="paused", done=done)
                raise
            state = "applied" if done == len(order) else "paused" if done else record.state
            self._write(record, state=state, done=done)
        return self.status()

    def rollback(self, progress: Progress | None = None) -> BackfillStatus:
        """Restore all refreshed rows, except those that others have overwritten since.

        Args:
            progress: called with batches done and total, before the first batch and after each.
        Raises: LineageError: nothing is planned.
        """
        self._record()  # fail before making a lock
        with self._locked():
            record = self._record()
            with self._opened(SOURCE) as source, self._made(SAVED) as saved:
                for done, total in self.store.undo(record.target, source, saved):
                    # Blocks `apply` and `plan` until all rows are restored.
                    record = self._write(record, state="rolling back")
                    if progress is not None:
                        progress(done, total)
            self._write(record, state="rolled back", done=0)
        return self.status()

    def status(self) -> BackfillStatus:
        """Return the progress. Raises: LineageError: nothing is planned."""
        record = self._record()
        _, errors = self.order()
        total = float(errors.sum())
        return BackfillStatus(
            record.state,
            record.side,
            self.store.address,
            record.target,
            record.rows,
            refreshed=record.done,
            remaining=float(errors[record.done :].sum()) / total if total else 0.0,
            held=self.store.count(),
        )

    def order(self) -> tuple[pa.Array, npt.NDArray[np.float64]]:
        """Return the planned ids [n] and their predicted errors [n], the largest first."""
        with self._opened(ORDER) as store:
            rows = [Rows(0, pa.array([], store.id_type), np.zeros((0, 1), np.float32))]
            planned = joined_rows([*rows, *store.scan()])
        errors = planned.vectors[:, 0].astype(np.float64)
        order = np.argsort(-errors, kind="stable")
        return planned.ids.take(pa.array(order)), errors[order]

    def _made(self, name: str) -> Store:
        return open_store(str(self.folder / name), create=str(self.store.id_type))

    def _opened(self, name: str) -> ReadableStore:
        """Open a snapshot that `plan` has made. Raises: IntegrityError."""
        try:
            return open_store(str(self.folder / name))
        except EvergramError as error:
            raise IntegrityError(
                f"The plan cannot be read ({error}) Remove {self.folder} and plan again; rows that "
                "were refreshed stay so."
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
    stores: dict[str, Store] = {}
    filled = []
    with ExitStack() as opened:
        try:
            for side, address in addresses.items():
                stores[side] = opened.enter_context(open_store(address, create=kinds[side]))
            refuse_shared({side: store.absolute_address for side, store in stores.items()})
            for side, store in stores.items():
                check_store(lineage, store, side, to_write=True)
                if index and store.adopted:
                    store.build_index()  # refuses
            for side, store in stores.items():
                of_side = None if progress is None else partial(progress, side, number)
                if store.adopted:
                    rows = Backfill(lineage, store, side).fill(number, of_side)
                else:
                    rows = fill(lineage, store, side, number, progress=of_side)
                if index:
                    store.build_index()
                filled.append(FilledStore(store.address, side, rows, store.count()))
        except BaseException:
            for side in absent & stores.keys():
                if stores[side].kind == "snapshot" and not any(stores[side].count().values()):
                    remove_folder(folders[side])
            raise
    return filled
