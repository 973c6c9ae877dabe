"""The folder of a snapshot: its current generation, its write lock, and commits of the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from filelock import Timeout

from evergram.atomic_files import sync
from evergram.errors import EvergramError, IntegrityError, StoreError
from evergram.file_lock import file_lock
from evergram.stores.snapshot.faiss_index import SegmentIndex, is_installed
from evergram.stores.snapshot.generation import Generation
from evergram.stores.snapshot.segment import Segment
from evergram.stores.snapshot.segment_writer import BATCH_BYTES, SegmentWriter
from evergram.stores.snapshot.snapshot_record import (
    NAME,
    OpenRecord,
    SegmentRecord,
    SnapshotRecord,
    write_record,
)
from evergram.stores.store import Space
from evergram.system_errors import reason_and_remedy


class SnapshotFolder:
    """A folder with `store.json` and `segments/`.

    Args:
        wait: seconds to wait for another process that is writing.
    """

    def __init__(self, path: Path, wait: float) -> None:
        self.path: Path = path
        self.segments: Path = path / "segments"
        self.address: str = f"snapshot:{path}"
        self.wait = wait
        self.indexes: dict[str, SegmentIndex] = {}
        self._open_record: OpenRecord | None = None
        self._generation: Generation | None = None
        self._loading = False
        self._refreshing, self._one_writer = threading.RLock(), threading.RLock()
        # Processes are kept apart by the file, threads of this one by the other lock.
        self._file_lock = file_lock(path / ".lock", thread_local=False)

    def create(self, id_type: str) -> None:
        """Make an empty store unless there is one. Raises: StoreError: it cannot be written."""
        try:
            self._refuse_others()
            self.segments.mkdir(parents=True, exist_ok=True)
            with self._file_lock.acquire(timeout=self.wait):
                if not (self.path / NAME).exists():
                    self._refuse_others()
                    write_record(self.path / NAME, SnapshotRecord(id_type, 0, 0, (), ()))
                    sync(self.path)
                    sync(self.path.parent)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be made a store: {_reason(error)}; give another folder."
            ) from error

    def _refuse_others(self) -> None:
        """Refuse a folder with somebody's files: writing removes what the store does not list.

        Raises: StoreError.
        """
        is_store = (self.path / NAME).exists()
        if not is_store and self.segments.is_dir() and any(self.segments.iterdir()):
            raise StoreError(
                f"{self.path} cannot be made a store: it has a folder 'segments' with other files, "
                f"and no {NAME}; give another folder."
            )

    def current(self) -> Generation:
        """Return the newest generation; a look at the inode of `store.json` tells whether it
        changed.

        Raises: IntegrityError: a file is not what was written. StoreError: it cannot be read.
        """
        generation, open_record = self._generation, self._open_record
        try:
            if generation is not None and open_record is not None and open_record.is_current():
                return generation
            return self._refresh()
        except OSError as error:
            raise StoreError(f"{self.address} cannot be read: {_reason(error)}.") from error

    def close(self) -> None:
        with self._refreshing:
            self._open_record, self._generation, self.indexes = None, None, {}

    def _refresh(self) -> Generation:
        path = self.path / NAME
        with self._refreshing:
            while True:
                open_record = OpenRecord(path)
                try:
                    before = self._generation or Generation(open_record.record, [])
                    after = before.advanced(open_record.record, self._load)
                    self._take(open_record, after)
                    return after
                except FileNotFoundError as error:
                    if open_record.is_current():
                        raise IntegrityError(
                            f"A file that {path} lists is not there ({error.filename or error}); "
                            "restore the store from a copy, or fill it again."
                        ) from None
                    # Another process has committed a later generation meanwhile.

    def _load(self, record: SegmentRecord) -> Segment:
        return Segment(self.segments, record)

    def _load_trusted(self, record: SegmentRecord) -> Segment:
        return Segment(self.segments, record, trusted=True)

    def _take(self, open_record: OpenRecord, generation: Generation) -> None:
        """Make a generation the current one, with the indexes of its segments; without faiss
        everything is searched exactly."""
        indexes = {}
        for part in generation.data():
            record, key = part.record.index, part.record.data.sha256
            if record is not None and is_installed():
                index = self.indexes.get(key)
                if index is None or index.record != record:
                    index = SegmentIndex(self.segments, record)
                    index.check()
                indexes[key] = index
        self._generation, self._open_record, self.indexes = generation, open_record, indexes

    # Writing.

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock. Raises: StoreError: another process holds it, there is no room, or
        no permission."""
        try:
            with self._one_writer, self._file_lock.acquire(timeout=self.wait):
                if self._loading:
                    raise StoreError(
                        f"{self.address} is being loaded; what gives the blocks cannot write to it."
                    )
                if self._file_lock.lock_counter == 1:
                    self._clear()
                yield
        except Timeout:
            raise StoreError(
                f"Another process is writing to {self.address}; wait for it and try again."
            ) from None
        except OSError as error:
            raise StoreError(
                f"{self.address} cannot be written: {reason_and_remedy(error, 'it is as it was')}."
            ) from error

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Refuse other writes while segments are written that `store.json` does not list yet."""
        self._loading = True
        try:
            yield
        finally:
            self._loading = False

    def writer(self, version: int | None, ahead: int = 0) -> SegmentWriter:
        """Return the writer of a new segment.

        Args:
            ahead: how many segments were begun since the last commit.
        """
        record = self.current().record
        dim = next((s.dim for s in record.spaces if s.version == version), 1)
        rows = max(1024, BATCH_BYTES // (4 * dim))
        return SegmentWriter(self.segments, record.next_number + ahead, version, rows)

    def commit(
        self,
        added: Iterable[SegmentRecord],
        removed: Iterable[SegmentRecord] = (),
        spaces: tuple[Space, ...] | None = None,
        side: str | None = None,
    ) -> None:
        """Commit a generation: replace `store.json`, then remove the files that it no longer
        lists."""
        before, added = self.current(), list(added)
        gone = {record.number for record in removed}
        kept = [s for s in before.record.segments if s.number not in gone]
        record = replace(
            before.record,
            generation=before.record.generation + 1,
            next_number=max([before.record.next_number, *(s.number + 1 for s in added)]),
            segments=tuple(sorted([*kept, *added], key=lambda segment: segment.number)),
            spaces=before.record.spaces if spaces is None else spaces,
            side=before.record.side if side is None else side,
        )
        try:
            after = before.advanced(record, self._load_trusted).without_empty()
            sync(self.segments)
            write_record(self.path / NAME, after.record)
        except BaseException:
            # An interrupt may come after the rename, and then the files are listed.
            if self._is_on_disk(before.record):
                self.remove([record for record in added if record.number not in gone])
            raise
        try:
            sync(self.path)
        except OSError as error:
            raise StoreError(
                f"{self.address} was written, and the disk does not confirm it: {_reason(error)}; "
                "write the same again."
            ) from error
        with self._refreshing:
            self._take(OpenRecord(self.path / NAME), after)
        self._clear()

    def _is_on_disk(self, record: SnapshotRecord) -> bool:
        """Return whether `store.json` is surely of this generation."""
        try:
            return OpenRecord(self.path / NAME).record.generation == record.generation
        except (OSError, EvergramError):
            return False

    def remove(self, records: Iterable[SegmentRecord]) -> None:
        """Delete the files of segments that are not listed."""
        with suppress(OSError):
            for name in (name for record in records for name in record.files):
                (self.segments / name).unlink(missing_ok=True)

    def _clear(self) -> None:
        """Delete all files that are not listed, replaced ones and those of a killed writer. A
        reader that has one mapped keeps it; one that cannot be deleted is left to a later write."""
        listed = {name for part in self.current().parts for name in part.record.files}
        with suppress(OSError):
            for path in self.segments.iterdir():
                if path.name not in listed:
                    path.unlink()


def _reason(error: OSError) -> str:
    if isinstance(error, Timeout):
        return "another process holds its lock"
    return error.strerror or str(error)
