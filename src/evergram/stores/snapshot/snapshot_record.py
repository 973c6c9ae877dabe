"""The record in `store.json`, and files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evergram.atomic_files import commit, part_of
from evergram.errors import FormatError, IntegrityError
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.store import Space

FORMAT_VERSION = 1
NAME = "store.json"


@dataclass(frozen=True)
class FileRecord:
    """A file in `segments/`; `sha256` is of all its bytes."""

    name: str
    sha256: str


@dataclass(frozen=True)
class IndexRecord(FileRecord):
    """A faiss index of a segment.

    Args:
        lists, probes: how many lists it has, and how many are looked through for a query.
        recall: of the ten best, measured when it was built.
        sample: stored rows that it was measured with.
        codes, oversample: as `IndexCodes` has them.
    """

    lists: int
    probes: int
    recall: float
    sample: int
    codes: str = FLOAT32.kind
    oversample: int = FLOAT32.oversample

    @property
    def index_codes(self) -> IndexCodes:
        return IndexCodes(self.codes, self.oversample)


@dataclass(frozen=True)
class SegmentRecord:
    """Rows that were written together.

    Args:
        number: later ones are larger; of two rows with one id, that of the larger counts.
        version: of all its rows; None: these are ids that were deleted.
        lookup: where each id is; None: rows are sorted themselves.
    """

    number: int
    version: int | None
    rows: int
    data: FileRecord
    lookup: FileRecord | None = None
    index: IndexRecord | None = None

    @property
    def files(self) -> list[str]:
        return [f.name for f in (self.data, self.lookup, self.index) if f is not None]


@dataclass(frozen=True)
class SnapshotRecord:
    """A generation of a snapshot. Segments are ascending by number, none of which is used twice.

    Args:
        side: of its rows; None until it is set.
    """

    id_type: str
    generation: int
    next_number: int
    spaces: tuple[Space, ...]
    segments: tuple[SegmentRecord, ...]
    side: str | None = None


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
        """Return whether the file at the path is still this one, or was the last one there.

        Who has a store open goes on reading it when another process removes it.
        """
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
    record = SnapshotRecord(
        body["id_type"],
        body["generation"],
        body["next_number"],
        tuple(Space(**space) for space in body["spaces"]),
        tuple(_segment(segment) for segment in body["segments"]),
        body["side"],
    )
    return _names_stay(record, path)


def _names_stay(record: SnapshotRecord, path: Path) -> SnapshotRecord:
    """Return the record, if it names only files of the store's folder: others would be read, and
    removed when they are replaced. Anybody can write a checksum.

    Raises: IntegrityError.
    """
    for name in (name for segment in record.segments for name in segment.files):
        if name != Path(name).name or name in ("", "."):
            raise IntegrityError(
                f"{path} names the file {name!r}, which is outside of the store's folder; restore "
                "the store from a copy, or fill it again."
            )
    return record


def _segment(fields: dict[str, Any]) -> SegmentRecord:
    lookup, index = fields.pop("lookup"), fields.pop("index")
    return SegmentRecord(
        **{**fields, "data": FileRecord(**fields["data"])},
        lookup=None if lookup is None else FileRecord(**lookup),
        index=None if index is None else IndexRecord(**index),
    )


def write_record(path: Path, record: SnapshotRecord) -> None:
    """Replace `store.json` by one rename; the caller syncs its folder."""
    body = {"format_version": FORMAT_VERSION, **asdict(record)}
    text = json.dumps({"sha256": _digest(body), "store": body}, indent=1)
    file = HashedFile(path)
    try:
        file.write(text.encode() + b"\n")
    except BaseException:
        file.abandon()
        raise
    file.finish()


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


class HashedFile:
    """A file to write to, also by Arrow, that is renamed into its place at the end and knows the
    SHA-256 of its bytes."""

    closed = False

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, part_of(path)
        self._file = self._part.open("wb")
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._hash.update(data)
        self._file.write(data)
        self._size += size
        return size

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Arrow's writer ends here; the file goes on."""

    def finish(self) -> str:
        """Sync the file and rename it into its place; the caller syncs its folder, once for several
        files. Returns: the file's SHA-256."""
        try:
            self._file.close()
            commit(self._part, self._path, sync_parent=False)
        except BaseException:
            self.abandon()
            raise
        return self._hash.hexdigest()

    def abandon(self) -> None:
        """Remove it, unless it is in its place already."""
        # Closing writes what is buffered, for which there may be no room.
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._part.unlink(missing_ok=True)
