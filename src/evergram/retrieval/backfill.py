"""A store's older rows are refreshed to a newer version: worst first, in batches, resumable."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from filelock import FileLock, Timeout

from evergram.atomic_files import make_folder, write_text
from evergram.compatibility.certificate import certify
from evergram.errors import IntegrityError, LineageError
from evergram.lineage.disk.path_check import check_tree
from evergram.lineage.disk.permissions import file_mode
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfill_journal import (
    journal_rows,
    not_in_journals,
    read_order,
    write_journal,
    write_table,
)
from evergram.retrieval.fill import Progress, fill, space_of
from evergram.retrieval.store_check import check_store
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.open_store import open_store
from evergram.stores.store import ID_TYPES, Floats, Rows, Store

BATCH = 10_000
# The error of a row of a withdrawn version, before all others.
UNREADABLE = 1e9


@dataclass(frozen=True)
class Status:
    """The progress of a backfill.

    Args:
        state: "planned", "under way", "applied" or "rolled back".
        target: the version that rows are refreshed to.
        rows: how many are to be refreshed.
        refreshed: how many of these are.
        without: older rows for which the version has no embedding; they stay as they are.
        remaining: mean predicted error of rows that wait, over that of all rows to refresh.
        held: rows of the store by version, now.
    """

    state: str
    side: str
    store: str
    target: int
    rows: int
    refreshed: int
    without: int
    remaining: float
    held: dict[int, int]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Backfill:
    """Refreshes the store of a side to production's version.

    If `apply` is killed at any moment, the next one resumes: a batch's old rows are kept in a file
    before the new ones are written, and writing a batch twice changes nothing. These files are kept
    until `rollback` or the next plan, so that every row can be put back.

    Raises: IntegrityError: the store was filled from another lineage, or with another side.
    """

    def __init__(self, lineage: Lineage, store: Store, side: str) -> None:
        check_store(lineage, store, side, withdrawn=True)
        self.lineage, self.store, self.side = lineage, store, side
        key = hashlib.sha256(store.place.encode()).hexdigest()[:12]
        self.folder = lineage.path / "backfills" / f"{side}-{key}"
        check_tree(lineage.path, self.folder)
        self._mode = file_mode(lineage.path)

    def plan(self, batch: int = BATCH) -> Status:
        """Write the order in which rows will be refreshed, the largest predicted error first.

        Raises: LineageError: another backfill of this store is under way.
        """
        with self._locked():
            if self._plan_path.exists() and self._progress()["state"] == "under way":
                raise LineageError(
                    f"A backfill of {self.store.address} is under way; finish it by 'apply', or "
                    "undo it by 'rollback', before another is planned."
                )
            shutil.rmtree(self.folder, ignore_errors=True)
            for folder in (self.folder, self.folder / "journal"):
                make_folder(folder, self._mode)
            target = self.lineage.production
            source = open_store(str(self.folder / "source"), create=_name_of(self.store.id_type))
            with source:
                fill(self.lineage, source, self.side, target)
                ids, errors, without = self._look(source, target)
            order = np.argsort(-errors, kind="stable")
            table = pa.table({"id": ids.take(pa.array(order)), "error": errors[order]})
            write_table(self.folder / "order.sealed", table, self._mode)
            facts = {
                "side": self.side,
                "store": self.store.address,
                "target": target,
                "fingerprint": self.lineage.manifest(target).fingerprint,
                "batch": batch,
                "rows": len(ids),
                "without": without,
            }
            self._say("planned", 0)
            write_text(self._plan_path, json.dumps(facts, indent=2), self._mode)
        return self.status()

    def apply(self, rows: int | None = None, progress: Progress | None = None) -> Status:
        """Refresh rows in the planned order.

        Args:
            rows: stop after so many more (whole batches); all by default.
            progress: called with rows done and rows in all.
        Raises: LineageError: nothing is planned, it was rolled back, or its version was withdrawn.
        """
        with self._locked():
            plan = self._planned()
            at = self._progress()
            if at["state"] == "rolled back":
                raise LineageError("This backfill was rolled back; plan another.")
            self.lineage.manifest(int(plan["target"]))
            order = read_order(self.folder / "order.sealed")["id"].combine_chunks()
            target, batch = int(plan["target"]), int(plan["batch"])
            self.store.take_side(self.side)
            space = space_of(self.lineage, target)
            self.store.add_space(self.store.spaces().get(target, space))
            done = int(at["done"])
            last = len(order) if rows is None else min(len(order), done + rows)
            with open_store(str(self.folder / "source")) as source:
                while done < last:
                    ids = order.slice(done, batch)
                    self._refresh(source, target, ids, self._journal(done))
                    done += len(ids)
                    self._say("under way", done)
                    if progress is not None:
                        progress(done, len(order))
            if done == len(order):
                self._say("applied", done)
        return self.status()

    def rollback(self, progress: Progress | None = None) -> Status:
        """Put back every row that was refreshed, unless it was written again since.

        Args:
            progress: called with batches done and batches in all.

        Raises: LineageError: nothing is planned.
        """
        with self._locked():
            target = int(self._planned()["target"])
            journals = sorted((self.folder / "journal").glob("*.sealed"), reverse=True)
            with open_store(str(self.folder / "source")) as source:
                for i, path in enumerate(journals, start=1):
                    for old in journal_rows(path):
                        ours = pc.is_in(old.ids, value_set=self._ours(source, target, old.ids))
                        mask = ours.to_numpy(zero_copy_only=False)
                        if mask.any():
                            back = Rows(old.version, old.ids.filter(ours), old.vectors[mask])
                            self.store.upsert(back)
                    if progress is not None:
                        progress(i, len(journals))
            self._say("rolled back", 0)
        return self.status()

    def status(self) -> Status:
        """Return the progress. Raises: LineageError: nothing is planned."""
        plan, at = self._planned(), self._progress()
        errors = read_order(self.folder / "order.sealed")["error"].to_numpy()
        total = float(errors.sum())
        done = int(at["done"])
        return Status(
            state=str(at["state"]),
            side=self.side,
            store=self.store.address,
            target=int(plan["target"]),
            rows=int(plan["rows"]),
            refreshed=done,
            without=int(plan["without"]),
            remaining=float(errors[done:].sum()) / total if total else 0.0,
            held=self.store.count(),
        )

    def _look(self, source: Store, target: int) -> tuple[pa.Array, npt.NDArray[np.float64], int]:
        """Return the ids to refresh, their predicted errors, and how many older rows have no new
        embedding."""
        maps = VersionMaps(self.lineage)
        ids: list[pa.Array] = []
        errors: list[npt.NDArray[np.float64]] = []
        without = 0
        for version in self.store.count():
            if version == target:
                continue
            for rows in self.store.scan(version):
                new_ids = [r.ids for r in source.fetch(rows.ids)]
                there = pc.is_in(rows.ids, value_set=_joined(new_ids, self.store.id_type))
                mask = there.to_numpy(zero_copy_only=False)
                without += int((~mask).sum())
                ids.append(rows.ids.filter(there))
                if version in self.lineage.withdrawn:
                    errors.append(np.full(int(mask.sum()), UNREADABLE))
                    continue
                dim = self.lineage.manifest(version).dim
                vectors = np.ascontiguousarray(rows.vectors[mask, :dim])
                errors.append(self._predicted(maps, vectors, version, target))
        return (
            _joined(ids, self.store.id_type),
            np.concatenate(errors) if errors else np.zeros(0),
            without,
        )

    def _predicted(
        self, maps: VersionMaps, vectors: Floats, version: int, target: int
    ) -> npt.NDArray[np.float64]:
        """Return the predicted error [n] of reading rows [n, D_v] as another version.

        With a forward map F it is ‖z − W F z‖, which is lost by the way forward and back, together
        with the chain's own error by its certificate. Without a forward map a row cannot be read
        forward, and its own error is not known: it is the certificate's, so the oldest come first.
        """
        known = None
        if version < target:
            known = certify(self.lineage.chain, self.lineage.step_errors, target, version)
        floor = known.estimate if known is not None else float(abs(target - version))
        if version > target or self.lineage.forward(version, target) is None:
            return np.full(len(vectors), floor)
        there = maps.rows(vectors, version, target)
        back = maps.rows(np.ascontiguousarray(there), target, version)
        lost = ((back.astype(np.float64) - vectors) ** 2).sum(axis=1)
        return np.asarray(np.sqrt(lost + floor**2))

    def _refresh(self, source: Store, target: int, ids: pa.Array, journal: Path) -> None:
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
        waiting = _joined([rows.ids for rows in old], self.store.id_type)
        width = self.store.spaces()[target].dim
        for rows in source.fetch(waiting):
            if rows.version == target:
                self.store.upsert(
                    Rows(target, rows.ids, np.ascontiguousarray(rows.vectors[:, :width]))
                )

    def _ours(self, source: Store, target: int, ids: pa.Array) -> pa.Array:
        """Return the ids whose row is the one that `apply` wrote."""
        ours = pa.array([], self.store.id_type)
        written = {rows.version: rows for rows in source.fetch(ids)}.get(target)
        for rows in self.store.fetch(ids):
            if rows.version != target or written is None:
                continue
            places = pc.index_in(rows.ids, value_set=written.ids)
            known = places.is_valid().to_numpy(zero_copy_only=False)
            width = rows.vectors.shape[1]
            same = np.zeros(len(rows), dtype=bool)
            same[known] = (
                rows.vectors[known] == written.vectors[places.drop_null().to_numpy(), :width]
            ).all(axis=1)
            ours = pa.concat_arrays([ours, rows.ids.filter(pa.array(same))])
        return ours

    @property
    def _plan_path(self) -> Path:
        return self.folder / "plan.json"

    def _journal(self, start: int) -> Path:
        return self.folder / "journal" / f"{start:012d}.sealed"

    def _say(self, state: str, done: int) -> None:
        facts = json.dumps({"state": state, "done": done})
        write_text(self.folder / "progress.json", facts, self._mode)

    def _progress(self) -> dict[str, Any]:
        return _read_json(self.folder / "progress.json", state=str, done=int)

    def _planned(self) -> dict[str, Any]:
        if not self._plan_path.exists():
            raise LineageError(
                f"No backfill of {self.store.address} is planned; 'evergram backfill plan' makes "
                "one."
            )
        plan = _read_json(
            self._plan_path, target=int, fingerprint=str, batch=int, rows=int, without=int
        )
        target = int(plan["target"])
        # Rows that were refreshed to a version that was withdrawn since can still be put back.
        gone = self.lineage.withdrawn.get(target)
        known = self.lineage.manifest(target) if gone is None else gone
        if plan["fingerprint"] != known.fingerprint:
            raise IntegrityError(
                f"{self._plan_path} was made for another version {plan['target']}; plan again."
            )
        return plan

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_folder(self.folder.parent, self._mode)
        try:
            with FileLock(self.folder.with_name(f".{self.folder.name}.lock"), timeout=0):
                yield
        except Timeout:
            raise LineageError(
                f"Another process is refreshing {self.store.address}; wait for it."
            ) from None
        except OSError as error:
            raise LineageError(
                f"{self.folder} cannot be written: {error.strerror or error}; the backfill is as "
                "it was, and 'apply' goes on from there."
            ) from error


def _name_of(kind: pa.DataType) -> str:
    return next(name for name, found in ID_TYPES.items() if found == kind)


def _joined(parts: list[pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays(parts) if parts else pa.array([], kind)


def _read_json(path: Path, **kinds: type) -> dict[str, Any]:
    """Return the facts in a file.

    Args:
        kinds: the type of each fact that must be there; numbers must not be negative.
    Raises: IntegrityError: the file cannot be read, or a fact is missing.
    """
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
        for name, kind in kinds.items():
            if type(facts[name]) is not kind or (kind is int and facts[name] < 0):
                raise ValueError(f"{name} is {facts[name]!r}")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise IntegrityError(
            f"{path} cannot be read: {error}. Remove {path.parent} and plan again; rows that were "
            "refreshed stay so."
        ) from error
    return facts
