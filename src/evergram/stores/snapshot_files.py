"""The files of a snapshot, which are mapped into memory, and the folder that they are in.

Rows of one version that were written together are a segment: `SHA.vectors` has the vectors, float32
[n, D], and `SHA.arrow` their ids in ascending order and their checksums. `SHA.dead` has a bit for
each row that is gone, `SHA.faiss` is an index. No file is ever changed, and each is named by its
SHA-256. `store.json` lists them; to commit is to replace it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from filelock import Timeout

from evergram.atomic_files import commit, file_lock, sync, write_bytes
from evergram.errors import (
    DataError,
    FormatError,
    IntegrityError,
    StoreError,
    reason_and_remedy,
)
from evergram.stores.rows import Checks, Floats, Keys, Places, Rows, Space, find, keys_of

FORMAT_VERSION = 1
NAME = "store.json"
# Rows that are copied at once.
BLOCK = 16_384
WAIT = 10.0  # seconds, for another process that writes
_FILE = re.compile(r"[0-9a-f]{64}\.[a-z]+")

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class IndexRecord:
    """A faiss index of a segment: how many lists it has, and how many a search looks into."""

    sha256: str
    lists: int
    probes: int


@dataclass(frozen=True)
class SegmentRecord:
    """Rows that were written together: the SHA-256 of their files, and how many are gone."""

    version: int
    dim: int
    rows: int
    vectors: str
    ids: str
    gone: int = 0
    dead: str | None = None
    index: IndexRecord | None = None

    @property
    def living(self) -> int:
        return self.rows - self.gone

    @property
    def files(self) -> list[str]:
        named = {"vectors": self.vectors, "arrow": self.ids, "dead": self.dead}
        named["faiss"] = None if self.index is None else self.index.sha256
        return [f"{sha256}.{kind}" for kind, sha256 in named.items() if sha256 is not None]


@dataclass(frozen=True)
class SnapshotRecord:
    """What `store.json` says."""

    id_type: str
    generation: int = 0
    spaces: tuple[Space, ...] = ()
    segments: tuple[SegmentRecord, ...] = ()
    side: str | None = None


def faiss_module() -> Any:
    """Return faiss. Raises: DataError: it is not installed."""
    try:
        import faiss
    except ImportError:
        raise DataError(
            "A fast index of a snapshot needs faiss: pip install 'evergram[faiss]'."
        ) from None
    return faiss


@dataclass(frozen=True, eq=False)
class Segment:
    """The files of a segment, mapped into memory.

    Args:
        vectors: [n, D]; ids, keys and checks [n] are in the same order, ascending by key.
        dead: bool [n], rows that are gone; None where there are none.
        index: faiss's; None without one, and where faiss is not installed.
    """

    record: SegmentRecord
    vectors: Floats
    ids: pa.Array
    keys: Keys
    checks: Checks
    dead: Mask | None
    index: Any

    def find(self, ids: pa.Array, keys: Keys) -> tuple[Places, Places]:
        """Return which of some ids [n] have a living row, in their order, and the rows."""
        which, rows = find(self.keys, ids, keys, lambda rows: self.ids.take(pa.array(rows)))
        if self.dead is None:
            return which, rows
        living = ~self.dead[rows]
        return which[living], rows[living]

    def living(self) -> Places:
        """Return the rows that are not gone."""
        return np.arange(len(self.keys)) if self.dead is None else np.flatnonzero(~self.dead)

    def take(self, rows: Places, ids: pa.Array | None = None) -> tuple[Rows, Checks]:
        """Return copies of rows [n], whose ids may be known, with the checksums that they have."""
        if ids is None:
            ids = self.ids.take(pa.array(rows))
            ids = ids if pa.types.is_integer(ids.type) else ids.cast(pa.string())
        return Rows(self.record.version, ids, self.vectors[rows]), self.checks[rows]

    def blocks(self, size: int) -> Iterator[tuple[Rows, Checks]]:
        """Yield copies of all living rows, with their checksums."""
        rows = self.living()
        for start in range(0, len(rows), size):
            yield self.take(rows[start : start + size])


def read_segment(folder: Path, record: SegmentRecord, known: Segment | None = None) -> Segment:
    """Map the files of a segment, but for those of `known`, which stay mapped. Raises:
    IntegrityError. FileNotFoundError."""

    def path_of(sha256: str, kind: str) -> Path:
        path = folder / f"{sha256}.{kind}"
        if digest_of(path) != sha256:
            raise IntegrityError(
                f"{path} is not what was written; restore the store from a copy, or fill it again."
            )
        return path

    dead, index = None, None
    if record.dead is not None:
        bits = np.frombuffer(path_of(record.dead, "dead").read_bytes(), np.uint8)
        dead = np.unpackbits(bits, count=record.rows, bitorder="little").view(np.bool_)
    if known is not None and known.record.index == record.index:
        index = known.index
    elif record.index is not None:
        path = path_of(record.index.sha256, "faiss")
        with suppress(DataError):
            faiss = faiss_module()
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    if known is not None:
        return replace(known, record=record, dead=dead, index=index)
    vectors = _mapped(path_of(record.vectors, "vectors"), record.dim)
    table = pa.ipc.open_file(pa.memory_map(str(path_of(record.ids, "arrow")))).read_all()
    arrays = {name: table[name].chunk(0) for name in table.column_names}
    keys = arrays.get("key", arrays["id"]).to_numpy()
    return Segment(record, vectors, arrays["id"], keys, arrays["check"].to_numpy(), dead, index)


def write_segment(
    folder: Path, space: Space, blocks: Iterable[tuple[Rows, Checks]]
) -> SegmentRecord | None:
    """Write rows of a version; a later row of an id replaces the one before. Vectors go to the disk
    as they come, and ids are in memory until the end. Returns: None without a row."""
    path, ids, checks = folder / "new", [], []
    with path.open("wb") as file:
        for rows, some in blocks:
            file.write(np.ascontiguousarray(rows.vectors, dtype="<f4").data)
            is_text = pa.types.is_string(rows.ids.type)
            # The offsets of a string array have 32 bits.
            ids.append(rows.ids.cast(pa.large_string()) if is_text else rows.ids)
            checks.append(some)
    if not ids:
        return None
    joined = pa.concat_arrays(ids)
    keys = keys_of(joined)
    order = _sorted(keys, joined)
    if not np.array_equal(order, np.arange(len(joined))):
        path = _reordered(path, order, space.dim)
    vectors = named_by_digest(path, "vectors")
    columns = {"id": joined.take(pa.array(order)), "check": np.concatenate(checks)[order]}
    if not pa.types.is_integer(joined.type):
        columns["key"] = keys[order]
    table = pa.table(columns)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    sha256 = named_by_digest(path, "arrow")
    return SegmentRecord(space.version, space.dim, len(order), vectors, sha256)


def _sorted(keys: Keys, ids: pa.Array) -> Places:
    """Return the places of ids [n] in the order of their keys, without those that come again."""
    order: Places = np.argsort(keys, kind="stable")
    ranked = keys[order]
    if (ranked[1:] != ranked[:-1]).all():
        return order
    codes = ids.dictionary_encode().indices.to_numpy()[::-1]
    last = np.zeros(len(ids), dtype=bool)
    last[len(ids) - 1 - np.unique(codes, return_index=True)[1]] = True
    return order[last[order]]


def _reordered(path: Path, order: Places, dim: int) -> Path:
    source, ordered = _mapped(path, dim), path.with_name("ordered")
    with ordered.open("wb") as file:
        for start in range(0, len(order), BLOCK):
            file.write(source[order[start : start + BLOCK]].data)
    return ordered


def _mapped(path: Path, dim: int) -> Floats:
    return np.frombuffer(pa.memory_map(str(path)).read_buffer(), "<f4").reshape(-1, dim)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def named_by_digest(path: Path, kind: str) -> str:
    """Sync a file that is whole now, and rename it. Returns: its SHA-256."""
    sha256 = digest_of(path)
    commit(path, path.with_name(f"{sha256}.{kind}"), sync_parent=False)
    return sha256


class Generation:
    """A snapshot at one moment: its record and its segments, which never change, so that threads
    read one generation while the next is written.

    `store.json` stays open, so that no later one can get its inode: a look at the inode then tells
    whether there is another generation.

    Raises: OSError. IntegrityError: a file is damaged. FormatError: a later Evergram wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.segments: tuple[Segment, ...] = ()
        self._path = str(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(self._descriptor, "rb", closefd=False) as file:
            self.record: SnapshotRecord = _parsed(file.read(), path)
            self._identity = _identity(os.fstat(self._descriptor))

    def of(self, version: int) -> list[Segment]:
        return [one for one in self.segments if one.record.version == version]

    def is_newest(self) -> bool:
        """Return whether `store.json` is still this one, or was the last one there: who has a store
        open goes on reading it when another process removes it."""
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


class SnapshotFolder:
    """A folder with `store.json` and `segments/`."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.segments: Path = path / "segments"
        self.address: str = f"snapshot:{path}"
        self._generation: Generation | None = None
        self._refreshing, self._one_writer = threading.RLock(), threading.RLock()
        # Processes are kept apart by the file, threads of this one by the other lock.
        self._file_lock = file_lock(path / ".lock", thread_local=False)

    def create(self, id_type: str) -> None:
        """Make an empty store unless there is one. Raises: StoreError: it cannot be written."""
        try:
            self._refuse_others()
            self.segments.mkdir(parents=True, exist_ok=True)
            with self._file_lock.acquire(timeout=WAIT):
                if not (self.path / NAME).exists():
                    write_record(self.path / NAME, SnapshotRecord(id_type))
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
        """Return the newest generation. Raises: IntegrityError, StoreError."""
        generation = self._generation
        try:
            if generation is not None and generation.is_newest():
                return generation
            return self._refresh()
        except OSError as error:
            raise StoreError(f"{self.address} cannot be read: {_reason(error)}.") from error

    @property
    def record(self) -> SnapshotRecord:
        return self.current().record

    def close(self) -> None:
        self._generation = None

    def _refresh(self) -> Generation:
        path = self.path / NAME
        with self._refreshing:
            while True:
                before, after = self._generation, Generation(path)
                known = {one.record.ids: one for one in before.segments} if before else {}
                try:
                    after.segments = tuple(
                        read_segment(self.segments, one, known.get(one.ids))
                        for one in after.record.segments
                    )
                except FileNotFoundError as error:
                    # Another process may have committed a later generation meanwhile.
                    if after.is_newest():
                        raise IntegrityError(
                            f"A file that {path} lists is not there ({error.filename or error}); "
                            "restore the store from a copy, or fill it again."
                        ) from None
                    continue
                self._generation = after
                return after

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock, and delete all files that are not listed, before and after: those of
        a write that was killed or failed, and replaced ones. Raises: StoreError."""
        try:
            with self._one_writer, self._file_lock.acquire(timeout=WAIT):
                if self._file_lock.lock_counter > 1:
                    raise StoreError(
                        f"{self.address} is being loaded; what gives the blocks cannot write to it."
                    )
                self._clear()
                try:
                    yield
                finally:
                    self._clear()
        except Timeout:
            raise StoreError(
                f"Another process is writing to {self.address}; wait for it and try again."
            ) from None
        except OSError as error:
            raise StoreError(
                f"{self.address} cannot be written: {reason_and_remedy(error, 'it is as it was')}."
            ) from error

    def write(self, version: int, blocks: Iterable[tuple[Rows, Checks]]) -> list[SegmentRecord]:
        """Write a segment, which `commit` lists; none without a row."""
        (space,) = (space for space in self.record.spaces if space.version == version)
        written = write_segment(self.segments, space, blocks)
        return [] if written is None else [written]

    def without(self, ids: pa.Array, keys: Keys) -> list[SegmentRecord]:
        """Return the segments without the rows of some ids, for `commit`."""
        records = []
        for segment in self.current().segments:
            rows, record = segment.find(ids, keys)[1], segment.record
            if len(rows):
                dead = np.zeros(record.rows, bool) if segment.dead is None else segment.dead.copy()
                dead[rows] = True
                path = self.segments / "new"
                path.write_bytes(np.packbits(dead, bitorder="little").tobytes())
                sha256 = named_by_digest(path, "dead")
                record = replace(record, gone=record.gone + len(rows), dead=sha256)
            if record.living:
                records.append(record)
        return records

    def commit(self, **changed: Any) -> None:
        """Replace `store.json` by one with other fields, and delete the files that it does not
        list."""
        before = self.record
        record = replace(before, generation=before.generation + 1, **changed)
        try:
            sync(self.segments)
            write_record(self.path / NAME, record)
        except OSError as error:
            # It may have come after the rename.
            if self.record.generation == before.generation:
                raise
            raise StoreError(
                f"{self.address} was written, and the disk does not confirm it: "
                f"{_reason(error)}; write the same again."
            ) from error
        self.current()
        self._clear()

    def _clear(self) -> None:
        """Delete all files that are not listed. A reader that has one mapped keeps it; one that
        cannot be deleted is left to a later write."""
        listed = {name for one in self.record.segments for name in one.files}
        with suppress(OSError):
            for path in self.segments.iterdir():
                if path.name not in listed:
                    path.unlink()


def _parsed(text: bytes, path: Path) -> SnapshotRecord:
    damaged = IntegrityError(f"{path} is damaged; restore the store from a copy, or fill it again.")
    try:
        content = json.loads(text)
        body = content["store"]
        whole = content["sha256"] == _digest(body)
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise damaged
    if body["format_version"] != FORMAT_VERSION:
        raise FormatError(
            f"{path} has format_version {body['format_version']}; this Evergram reads "
            f"{FORMAT_VERSION}; use a later Evergram."
        )
    segments = []
    for one in body["segments"]:
        if one["index"] is not None:
            one["index"] = IndexRecord(**one["index"])
        segments.append(SegmentRecord(**one))
    # Anybody can write a checksum: no other file is read, or removed, in place of a segment's.
    if not all(_FILE.fullmatch(name) for one in segments for name in one.files):
        raise damaged
    spaces = tuple(Space(**space) for space in body["spaces"])
    return SnapshotRecord(
        body["id_type"], body["generation"], spaces, tuple(segments), body["side"]
    )


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
