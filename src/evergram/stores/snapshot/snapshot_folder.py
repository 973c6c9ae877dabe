"""The folder of a snapshot: its record, its current generation, its write lock, and commits."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from filelock import Timeout

from evergram.atomic_files import file_lock, sync, write_bytes
from evergram.errors import (
    DataError,
    EvergramError,
    FormatError,
    IntegrityError,
    StoreError,
    reason_and_remedy,
)
from evergram.stores.rows import Space
from evergram.stores.snapshot.faiss_index import SegmentIndex, is_installed
from evergram.stores.snapshot.generation import Generation, SnapshotRecord
from evergram.stores.snapshot.segment import IndexRecord, Segment, SegmentRecord, SegmentWriter

FORMAT_VERSION = 1
NAME = "store.json"


class SnapshotFolder:
    """A folder with `store.json` and `segments/`.

    Args:
        wait: seconds to wait for another process that is writing.
    """

    def __init__(self, path: Path, wait: float) -> None:
        self.path: Path = path
        self.segments: Path = path / "segments"
        self.address: str = f"snapshot:{path}"
        self.indexes: dict[int, SegmentIndex] = {}
        self._wait = wait
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
            with self._file_lock.acquire(timeout=self._wait):
                if not (self.path / NAME).exists():
                    self._refuse_others()
                    write_record(self.path / NAME, SnapshotRecord(id_type, 0, 0, (), ()))
                    sync(self.path.parent)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be made a store: {_reason(error)}; give another folder."
            ) from error

    def _refuse_others(self) -> None:
        """Raises: StoreError: the folder has somebody's files, which writing would remove."""
        is_store = (self.path / NAME).exists()
        if not is_store and self.segments.is_dir() and any(self.segments.iterdir()):
            raise StoreError(
                f"{self.path} cannot be made a store: it has a folder 'segments' with other files, "
                f"and no {NAME}; give another folder."
            )

    def current(self) -> Generation:
        """Return the newest generation; the inode of `store.json` tells whether it changed.

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
                    after = before.advanced(
                        open_record.record, lambda one: Segment(self.segments, one)
                    )
                    self._take(open_record, after)
                    return after
                except FileNotFoundError as error:
                    # Another process may have committed a later generation meanwhile.
                    if open_record.is_current():
                        raise IntegrityError(
                            f"A file that {path} lists is not there ({error.filename or error}); "
                            "restore the store from a copy, or fill it again."
                        ) from None

    def _take(self, open_record: OpenRecord, generation: Generation) -> None:
        """Make a generation the current one, with the indexes of its segments; without faiss
        everything is searched exactly."""
        indexes = {}
        for part in generation.data():
            if part.index is not None and is_installed():
                index = self.indexes.get(part.record.number)
                if index is None or index.record != part.index:
                    index = SegmentIndex(self.segments, part.record.number, part.index)
                indexes[part.record.number] = index
        self._generation, self._open_record, self.indexes = generation, open_record, indexes

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock. Raises: StoreError: another process holds it, there is no room, or
        no permission."""
        try:
            with self._one_writer, self._file_lock.acquire(timeout=self._wait):
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
    def writer(self, version: int | None) -> Iterator[SegmentWriter]:
        """Write a new segment, which is removed if the block fails. No other write can begin."""
        record = self.current().record
        dim = next((space.dim for space in record.spaces if space.version == version), 0)
        self._loading = True
        try:
            with SegmentWriter(self.segments, record.next_number, version, dim) as writer:
                yield writer
        finally:
            self._loading = False

    def commit(
        self,
        added: SegmentRecord | None = None,
        removed: Iterable[SegmentRecord] = (),
        *,
        spaces: tuple[Space, ...] | None = None,
        side: str | None = None,
    ) -> None:
        """Commit a generation: replace `store.json`, then remove the files that it no longer
        lists."""
        before, new = self.current(), [] if added is None else [added]
        gone = {record.number for record in removed}
        kept = [record for record in before.record.segments if record.number not in gone]
        record = replace(
            before.record,
            generation=before.record.generation + 1,
            next_number=max([before.record.next_number, *(one.number + 1 for one in new)]),
            segments=tuple(sorted([*kept, *new], key=lambda one: one.number)),
            spaces=before.record.spaces if spaces is None else spaces,
            side=before.record.side if side is None else side,
        )
        try:
            after = before.advanced(
                record, lambda one: Segment(self.segments, one, trusted=True)
            ).without_empty()
            sync(self.segments)
            write_record(self.path / NAME, after.record)
        except BaseException as error:
            # It may have come after the rename, and then the files are listed.
            if self._is_on_disk(before.record):
                for one in new if added is None or added.number not in gone else []:
                    with suppress(OSError):
                        (self.segments / one.name).unlink(missing_ok=True)
            elif isinstance(error, OSError):
                raise StoreError(
                    f"{self.address} was written, and the disk does not confirm it: "
                    f"{_reason(error)}; write the same again."
                ) from error
            raise
        with self._refreshing:
            self._take(OpenRecord(self.path / NAME), after)
        self._clear()

    def _is_on_disk(self, record: SnapshotRecord) -> bool:
        """Return whether `store.json` is surely of this generation."""
        try:
            return OpenRecord(self.path / NAME).record.generation == record.generation
        except (OSError, EvergramError):
            return False

    def _clear(self) -> None:
        """Delete all files that are not listed, replaced ones and those of a killed writer. A
        reader that has one mapped keeps it; one that cannot be deleted is left to a later write."""
        listed = {name for part in self.current().parts for name in part.record.files}
        with suppress(OSError):
            for path in self.segments.iterdir():
                if path.name not in listed:
                    path.unlink()


class OpenRecord:
    """A `store.json` that stays open, so that no later one can get its inode: a look at the inode
    then tells whether there is another generation.

    Raises: OSError. IntegrityError: it is damaged. FormatError: a later Evergram wrote it.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(self._descriptor, "rb", closefd=False) as file:
            self.record: SnapshotRecord = _parsed(file.read(), path)
            self._identity = _identity(os.fstat(self._descriptor))

    def is_current(self) -> bool:
        """Return whether the file at the path is still this one, or was the last one there: who
        has a store open goes on reading it when another process removes it."""
        try:
            status = os.stat(self._path)  # noqa: PTH116 - asked at every call
        except FileNotFoundError:
            return True
        return self._identity == _identity(status)

    def __del__(self) -> None:
        # Not earlier: a thread may be comparing inodes.
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns


def _parsed(text: bytes, path: Path) -> SnapshotRecord:
    try:
        content = json.loads(text)
        body = content["store"]
        whole = content["sha256"] == _digest(body)
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise IntegrityError(
            f"{path} is damaged (its checksum differs); restore the store from a copy, or fill it "
            "again."
        )
    if body["format_version"] != FORMAT_VERSION:
        raise FormatError(
            f"{path} has format_version {body['format_version']}; this Evergram reads "
            f"{FORMAT_VERSION}; use a later Evergram."
        )
    spaces = tuple(Space(**space) for space in body["spaces"])
    segments = tuple(
        SegmentRecord(**{**one, "index": one["index"] and IndexRecord(**one["index"])})
        for one in body["segments"]
    )
    try:
        # Anybody can write a checksum: no other file is read, or removed, in place of a segment.
        _ = [one.files for one in segments]
    except (ValueError, TypeError, DataError) as error:
        raise IntegrityError(
            f"{path} is damaged ({error}); restore the store from a copy, or fill it again."
        ) from None
    facts = {key: body[key] for key in ("id_type", "generation", "next_number", "side")}
    return SnapshotRecord(**facts, spaces=spaces, segments=segments)


def write_record(path: Path, record: SnapshotRecord) -> None:
    """Replace `store.json` by one rename."""
    body: dict[str, Any] = {"format_version": FORMAT_VERSION, **asdict(record)}
    text = json.dumps({"sha256": _digest(body), "store": body}, indent=1)
    write_bytes(path, text.encode() + b"\n")


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _reason(error: OSError) -> str:
    if isinstance(error, Timeout):
        return "another process holds its lock"
    return error.strerror or str(error)
