"""A store's older rows are refreshed to a newer version: worst first, in batches, resumable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from filelock import Timeout

from evergram.atomic_files import file_lock, make_folder, remove_folder
from evergram.compatibility.certificate import certify
from evergram.errors import EvergramError, IntegrityError, LineageError, reason_and_remedy
from evergram.lineage.lineage import Lineage
from evergram.lineage.paths import check_tree, file_mode
from evergram.retrieval.backfilling.backfill_files import (
    BackfillPlan,
    BackfillState,
    BackfillStatus,
    journal_rows,
    not_in_journals,
    read_order,
    write_journal,
    write_table,
)
from evergram.retrieval.fill import Progress, fill, space_of
from evergram.retrieval.store_check import check_store
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.adopted_store import read_only
from evergram.stores.open_store import open_store
from evergram.stores.rows import Floats, joined_ids, places_among
from evergram.stores.store import ID_TYPES, ReadableStore, Rows, Store

# The error of a row of a withdrawn version, which is refreshed before all others.
UNREADABLE = 1e9


@dataclass(frozen=True)
class BackfillOrder:
    """Rows to refresh, worst first.

    Args:
        ids: [n].
        errors: [n], descending: the predicted error of reading each row as the new version.
        without: how many older rows have no embedding in the new version.
        absent: how many objects of the new version have no row at all.
    """

    ids: pa.Array
    errors: npt.NDArray[np.float64]
    without: int
    absent: int


def backfill_order(
    lineage: Lineage, store: ReadableStore, source: ReadableStore, target: int
) -> BackfillOrder:
    """Return the rows of a store that another version has an embedding for.

    Args:
        source: holds the embeddings of version `target`.
    """
    maps = VersionMaps(lineage)
    ids, held = [pa.array([], store.id_type)], [pa.array([], store.id_type)]
    errors = [np.zeros(0)]
    without = 0
    for version in store.count():
        for rows in store.scan(version):
            new_ids = [pa.array([], store.id_type), *(new.ids for new in source.fetch(rows.ids))]
            has_new = pc.is_in(rows.ids, value_set=pa.concat_arrays(new_ids))
            mask = has_new.to_numpy(zero_copy_only=False)
            held.append(rows.ids.filter(has_new))
            if version == target:
                continue
            without += int((~mask).sum())
            ids.append(held[-1])
            if version in lineage.withdrawn:
                errors.append(np.full(int(mask.sum()), UNREADABLE))
                continue
            dim = lineage.manifest(version).dim
            vectors = np.ascontiguousarray(rows.vectors[mask, :dim])
            errors.append(predicted_errors(lineage, maps, vectors, version, target))
    all_ids, all_errors = pa.concat_arrays(ids), np.concatenate(errors)
    # A row that another writer moves meanwhile may be met in both of its versions.
    absent = source.count().get(target, 0) - len(pa.concat_arrays(held).unique())
    order = np.argsort(-all_errors, kind="stable")
    return BackfillOrder(all_ids.take(pa.array(order)), all_errors[order], without, absent)


def predicted_errors(
    lineage: Lineage, maps: VersionMaps, vectors: Floats, version: int, target: int
) -> npt.NDArray[np.float64]:
    """Return the predicted error [n] of reading rows [n, D_v] as another version.

    With a forward map F it is ‖z − W F z‖, which is lost by the way forward and back, together with
    the chain's own error by its certificate. Without a forward map a row cannot be read forward,
    and its own error is not known: it is the certificate's, so the oldest come first.
    """
    certificate = None
    if version < target:
        certificate = certify(lineage.chain, lineage.step_errors, target, version)
    floor = float(abs(target - version)) if certificate is None else certificate.estimate
    if version > target or lineage.forward(version, target) is None:
        return np.full(len(vectors), floor)
    forward = maps.rows(vectors, version, target)
    back = maps.rows(np.ascontiguousarray(forward), target, version)
    lost = ((back.astype(np.float64) - vectors) ** 2).sum(axis=1)
    return np.asarray(np.sqrt(lost + floor**2))


BATCH = 10_000


class Backfill:
    """Refreshes the store of a side to production's version.

    If `apply` is killed at any moment, the next one resumes: a batch's old rows are kept in a file
    before the new ones are written, and writing a batch twice changes nothing. These files are kept
    until `rollback` or the next plan, so that every row can be put back.

    Raises: IntegrityError: the store was filled from another lineage, or with another side.
    """

    def __init__(self, lineage: Lineage, store: ReadableStore, side: str) -> None:
        if not isinstance(store, Store):
            raise read_only(store.address)
        check_store(lineage, store, side, withdrawn=True)
        self.lineage: Lineage = lineage
        self.store: Store = store
        self.side: str = side
        key = hashlib.sha256(store.place.encode()).hexdigest()[:12]
        self.folder: Path = lineage.path / "backfills" / f"{side}-{key}"
        check_tree(lineage.path, self.folder)
        self._mode = file_mode(lineage.path)
        self._state = BackfillState(self.folder, self._mode)

    def plan(self, batch: int = BATCH) -> BackfillStatus:
        """Write the order in which rows will be refreshed, the largest predicted error first.

        Raises: LineageError: another backfill of this store is under way, or being rolled back.
        """
        with self._locked():
            self._refuse_unfinished()
            # Old rows of an earlier backfill, left there, would be taken for those of this one.
            remove_folder(self.folder)
            if self.folder.exists():
                raise LineageError(
                    f"{self.folder}, of an earlier backfill, cannot be removed; remove it, and "
                    "plan again."
                )
            for folder in (self.folder, self.folder / "journal"):
                make_folder(folder, self._mode)
            target = self.lineage.production
            id_type = next(name for name, kind in ID_TYPES.items() if kind == self.store.id_type)
            self.store.remove_superseded()
            with open_store(str(self.folder / "source"), create=id_type) as source:
                fill(self.lineage, source, self.side, target)
                order = backfill_order(self.lineage, self.store, source, target)
            table = pa.table({"id": order.ids, "error": order.errors})
            write_table(self.folder / "order.sealed", table, self._mode)
            self._state.write_plan(
                BackfillPlan(
                    side=self.side,
                    store=self.store.address,
                    target=target,
                    fingerprint=self.lineage.manifest(target).fingerprint,
                    batch=batch,
                    rows=len(order.ids),
                    without=order.without,
                    absent=order.absent,
                )
            )
        return self.status()

    def apply(self, rows: int | None = None, progress: Progress | None = None) -> BackfillStatus:
        """Refresh rows in the planned order.

        Args:
            rows: stop after so many more; all by default.
            progress: called with rows done and rows in all.
        Raises: LineageError: nothing is planned, it was rolled back or is half rolled back, its
            version was withdrawn, or another version is in production by now.
        """
        self._plan()  # before a lock is made
        with self._locked():
            plan = self._plan()
            state, done = self._state.progress()
            if done > plan.rows:
                raise IntegrityError(
                    f"{self.folder} says that {done} of {plan.rows} rows are refreshed; remove it "
                    "and plan again."
                )
            if state == "rolled back":
                raise LineageError("This backfill was rolled back; plan another.")
            if state == "rolling back":
                raise LineageError(
                    "A rollback of this backfill was interrupted; finish it by 'rollback'."
                )
            self.lineage.manifest(plan.target)
            if plan.target != self.lineage.production:
                raise LineageError(
                    f"This backfill leads to version {plan.target}, and version "
                    f"{self.lineage.production} is in production since; plan another, or undo this "
                    "one by 'rollback'."
                )
            order = read_order(self.folder / "order.sealed")["id"].combine_chunks()
            if state != "planned":
                # A kill may have left rows of which later versions are written; `_refresh` does
                # not see them, and their ids may be of any batch before.
                self.store.remove_superseded()
            self.store.take_side(self.side)
            space = space_of(self.lineage, plan.target)
            self.store.add_space(self.store.spaces().get(plan.target, space))
            last = len(order) if rows is None else min(len(order), done + rows)
            with self._source() as source:
                if done < last:
                    self._state.begin_run(done)
                while done < last:
                    ids = order.slice(done, min(plan.batch, last - done))
                    self._refresh(source, plan.target, ids, self._journal(done))
                    done += len(ids)
                    paused = last <= done < len(order)
                    self._state.write_progress("under way", done, paused=paused)
                    if progress is not None:
                        progress(done, len(order))
            if done == len(order):
                self._state.write_progress("applied", done)
        return self.status()

    def rollback(self, progress: Progress | None = None) -> BackfillStatus:
        """Put back every row that was refreshed, unless it was written again since.

        Args:
            progress: called with batches done and batches in all.

        Raises: LineageError: nothing is planned.
        """
        self._plan()  # before a lock is made
        with self._locked():
            target = self._plan().target
            state, done = self._state.progress()
            journals = sorted((self.folder / "journal").glob("*.sealed"), reverse=True)
            with self._source() as source:
                for i, path in enumerate(journals, start=1):
                    for old in journal_rows(path):
                        ours = pc.is_in(old.ids, value_set=self._ours(source, target, old.ids))
                        mask = ours.to_numpy(zero_copy_only=False)
                        if mask.any():
                            if state != "rolling back":
                                # Until all rows are back, no other step may go on from here.
                                state = "rolling back"
                                self._state.write_progress(state, done)
                            back = Rows(old.version, old.ids.filter(ours), old.vectors[mask])
                            self.store.upsert(back)
                    if progress is not None:
                        progress(i, len(journals))
            self._state.write_progress("rolled back", 0)
        return self.status()

    def status(self) -> BackfillStatus:
        """Return the progress. Raises: LineageError: nothing is planned."""
        plan, (state, done) = self._plan(), self._state.progress()
        errors = read_order(self.folder / "order.sealed")["error"].to_numpy()
        total = float(errors.sum())
        return BackfillStatus(
            state=state,
            side=self.side,
            store=self.store.address,
            target=plan.target,
            rows=plan.rows,
            refreshed=done,
            without=plan.without,
            absent=plan.absent,
            remaining=float(errors[done:].sum()) / total if total else 0.0,
            held=self.store.count(),
        )

    def _refuse_unfinished(self) -> None:
        """Raises: LineageError: an earlier backfill is to be finished first. One to a version that
        is no longer in production is not: its rows are refreshed from where they are."""
        if not self._state.is_planned:
            return
        state = self._state.progress()[0]
        if state == "rolling back":
            raise LineageError(
                f"A rollback of the backfill of {self.store.address} was interrupted; finish it by "
                "'rollback' before another is planned."
            )
        if state == "under way" and self._state.plan().target == self.lineage.production:
            raise LineageError(
                f"A backfill of {self.store.address} is under way; finish it by 'apply', or "
                "undo it by 'rollback', before another is planned."
            )

    def _refresh(self, source: ReadableStore, target: int, ids: pa.Array, journal: Path) -> None:
        """Write the old rows of a batch to the journal, and then the new ones to the store."""
        old = [rows for rows in self.store.fetch(ids) if rows.version != target]
        if not old:
            return
        # After a kill, rows that were written by others since are kept too, in one more file.
        kept = sorted(journal.parent.glob(f"{journal.name}*"))
        fresh = not_in_journals(old, kept)
        if fresh:
            after = f".{len(kept):06d}.sealed" if kept else ""
            write_journal(journal.with_name(journal.name + after), fresh, self._mode)
        waiting = joined_ids([rows.ids for rows in old], self.store.id_type)
        width = self.store.spaces()[target].dim
        for rows in source.fetch(waiting):
            if rows.version == target:
                self.store.upsert(
                    Rows(target, rows.ids, np.ascontiguousarray(rows.vectors[:, :width]))
                )

    def _ours(self, source: ReadableStore, target: int, ids: pa.Array) -> pa.Array:
        """Return the ids whose row is the one that `apply` wrote."""
        ours = pa.array([], self.store.id_type)
        written = {rows.version: rows for rows in source.fetch(ids)}.get(target)
        for rows in self.store.fetch(ids):
            if rows.version != target or written is None:
                continue
            known, places = places_among(rows.ids, written.ids)
            width = rows.vectors.shape[1]
            same = np.zeros(len(rows), dtype=bool)
            same[known] = (rows.vectors[known] == written.vectors[places, :width]).all(axis=1)
            ours = pa.concat_arrays([ours, rows.ids.filter(pa.array(same))])
        return ours

    def _source(self) -> ReadableStore:
        """Return the store of the rows to write, which the plan filled. Raises: IntegrityError."""
        try:
            return open_store(str(self.folder / "source"))
        except EvergramError as error:
            raise IntegrityError(
                f"The new rows of the backfill cannot be read ({error}) Remove {self.folder} and "
                "plan again; rows that were refreshed stay so."
            ) from error

    def _journal(self, start: int) -> Path:
        return self.folder / "journal" / f"{start:012d}.sealed"

    def _plan(self) -> BackfillPlan:
        """Return the plan.

        Raises: LineageError: nothing is planned. IntegrityError: it was made for another version
            than the lineage's.
        """
        if not self._state.is_planned:
            raise LineageError(
                f"No backfill of {self.store.address} is planned; 'evergram store backfill plan' "
                "makes one."
            )
        plan = self._state.plan()
        # Rows that were refreshed to a version that was withdrawn since can still be put back.
        withdrawal = self.lineage.withdrawn.get(plan.target)
        version = self.lineage.manifest(plan.target) if withdrawal is None else withdrawal
        if plan.fingerprint != version.fingerprint:
            raise IntegrityError(
                f"{self._state.plan_path} was made for another version {plan.target}; plan again."
            )
        return plan

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
